"""Whether the model retrieves, and what it recommends."""

from deploy.monitoring.grafana import board, chart, increase, rate

__all__ = ["BOARD"]


def _by_age(of: str) -> str:
    hits = f'sum by (up_to) (increase(weir_recall_freshness_hits_total{{of="{of}",k="$k"}}[1h]))'
    return f'{hits} / sum by (up_to) (increase(weir_recall_freshness_events_total{{of="{of}"}}[1h]))'


BOARD = board(
    "weir-learning",
    "Weir: learning",
    "Does it retrieve, and what does it recommend?",
    {
        "Recall, measured through the server": [
            chart(
                "Three recalls and the baseline",
                {
                    "model": 'avg (weir_recall_model{k="$k"})',
                    "served": 'avg (weir_recall_served{k="$k"})',
                    "popularity": 'avg (weir_recall_popularity{k="$k"})',
                    "index": 'avg (weir_recall_index{k="$k"})',
                },
                "Model: exact search. Served: what a product shows. Index: share of exact search that is found. "
                "They fail for different reasons: docs/recall.md.",
                unit="percentunit",
                width=12,
                top=1,
            ),
            chart(
                "An hour's mean, and a week ago",
                {
                    "model": 'avg (namespace_k:weir_recall_model:avg1h{k="$k"})',
                    "served": 'avg (namespace_k:weir_recall_served:avg1h{k="$k"})',
                    "popularity": 'avg (namespace_k:weir_recall_popularity:avg1h{k="$k"})',
                    "model, a week ago": 'avg (namespace_k:weir_recall_model:avg1h{k="$k"} offset 7d)',
                },
                "The values that the alerts compare.",
                unit="percentunit",
            ),
            chart(
                "Model over popularity",
                {"ratio": 'avg (weir_recall_model{k="$k"}) / avg (weir_recall_popularity{k="$k"})'},
                "Below 1.1 a list of popular items would do.",
                width=4,
            ),
        ],
        "Served recall, by age": [
            chart(
                "By the age of the bundle",
                {"up to {{up_to}} s": _by_age("bundle")},
                "An hour's events, by the seconds from the newest event that the bundle was trained on to theirs.",
                unit="percentunit",
            ),
            chart(
                "By the age of the histories",
                {"up to {{up_to}} s": _by_age("history")},
                "Asked with the histories committed before the window, by the seconds since it began.",
                unit="percentunit",
            ),
            chart(
                "What committed histories miss",
                {
                    "histories at the event": 'avg (weir_recall_served{k="$k"})',
                    "committed histories": 'avg (weir_recall_committed{k="$k"})',
                },
                "The gap is what shorter windows can gain where the server looks up its users: docs/recall.md.",
                unit="percentunit",
            ),
        ],
        "Champion and challenger": [
            chart(
                "Recall as served",
                {"{{variant}}": 'avg by (variant) (weir_variant_mean{measure="recall"})'},
                "On the same events, mean over users of each window: docs/serving.md.",
                unit="percentunit",
            ),
            chart(
                "How much better is the challenger?",
                {
                    "at most": 'max (weir_variant_difference_high{measure="recall"})',
                    "recall": 'avg (weir_variant_difference{measure="recall"})',
                    "at least": 'min (weir_variant_difference_low{measure="recall"})',
                },
                "The interval is valid whenever one looks. Above 0: better, below: worse, around it: not known yet.",
                unit="percentunit",
                low=None,
            ),
            chart(
                "Lists clicked, by line",
                {"{{variant}}": "avg by (variant) (weir_attribution_variant_click_through{})"},
                "Share of served lists with a click. The verdict counts each user once: `weir inspect variants`.",
                unit="percentunit",
            ),
        ],
        "Recall, measured by the trainer": [
            chart(
                "Recall",
                {
                    "model": 'avg (weir_trainer_prequential_recall{k="$k"})',
                    "popularity": 'avg (weir_trainer_popularity_recall{k="$k"})',
                },
                "On a window before training on it.",
                unit="percentunit",
            ),
            chart(
                "NDCG",
                {
                    "model": 'avg (weir_trainer_prequential_ndcg{k="$k"})',
                    "popularity": 'avg (weir_trainer_popularity_ndcg{k="$k"})',
                },
                "Ideal: the item first.",
                unit="percentunit",
            ),
            chart("Loss", {"newest step": "avg (weir_trainer_loss{})"}, "Comparable over hours, not between settings."),
        ],
        "What is recommended": [
            chart(
                "Novelty",
                {"bits": 'avg (weir_trainer_novelty_nats{k="$k"}) / 0.6931'},
                "Mean self-information of recommended items, bits. Log Q changes it: higher means rarer items.",
            ),
            chart(
                "Popularity of what is recommended",
                {"events": 'avg (weir_trainer_recommended_popularity{k="$k"})'},
                "Mean recent (decayed) count of recommended items.",
            ),
            chart(
                "Negatives masked per example",
                {
                    "accidental hits": rate("weir_trainer_accidental_hits_total{}")
                    + " / "
                    + rate("weir_trainer_examples_total{}")
                },
                "Sampled negatives that are the row's own items.",
            ),
        ],
        "Shown and not chosen": [
            chart(
                "Clicks, and their lists",
                {"{{outcome}}": rate("weir_pipeline_exposure_clicks_total{}", by="outcome")},
                "Positives with an attribution token a second, by what came of looking for their list: "
                "docs/attribution.md.",
            ),
            chart(
                "Items passed over, per positive",
                {
                    "committed": rate("weir_pipeline_exposed_items_total{}")
                    + " / "
                    + rate('weir_pipeline_events_total{label="positive"}'),
                    "with a row": rate("weir_trainer_exposed_items_total{}")
                    + " / "
                    + rate("weir_trainer_examples_total{}"),
                },
                "Shown beside what was chosen. 0 where `pipeline.exposed_items` and `trainer.negatives.exposed` are 0.",
            ),
        ],
        "Counts behind log Q": [
            chart(
                "Error of log Q",
                {"{{scope}}": "max by (scope) (weir_sketch_log_q_error_nats{})"},
                "Nats, from collisions. The trainer's is `view`; alarm at 0.1.",
            ),
            chart(
                "Cells in use",
                {"{{scope}}": "max by (scope) (weir_sketch_fill_ratio{})"},
                "At 1 the sketch is too small for any purpose.",
                unit="percentunit",
                top=1,
            ),
            chart(
                "Distinct ids",
                {"{{scope}}": "max by (scope) (weir_sketch_distinct_keys{})"},
                "`window_users`: users, the others: items.",
            ),
        ],
        "The stream": [
            chart(
                "Drift between windows",
                {
                    "newest window": "max (weir_sketch_drift_distance{})",
                    "mean of a week": "max (namespace:weir_sketch_drift_distance:avg7d{})",
                },
                "Jensen-Shannon distance of the items' shares: 0 equal, 1 disjoint.",
                top=1,
            ),
            chart(
                "Events on new items",
                {"share": "max (weir_sketch_unseen_events_ratio{})"},
                "Items that were absent just before.",
                unit="percentunit",
                top=1,
            ),
            chart(
                "Item table",
                {
                    "rows": "max (weir_trainer_item_table_rows{})",
                    "admitted": increase("weir_trainer_items_admitted_total{}"),
                    "evicted": increase("weir_trainer_items_evicted_total{}"),
                    "examples skipped": increase("weir_trainer_unadmitted_examples_total{}"),
                },
            ),
        ],
    },
)
