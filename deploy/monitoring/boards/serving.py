"""Traffic, latency, errors, saturation, and the index."""

from deploy.monitoring.grafana import REQUESTS, board, chart, increase, quantile, quantiles, rate

__all__ = ["BOARD"]

BOARD = board(
    "weir-serving",
    "Weir: serving",
    "Traffic, latency, errors, saturation, and the index.",
    {
        "Traffic": [
            chart(
                "Requests",
                {"{{grpc_method}}": rate('grpc_server_handled_total{job="weir-serving"}', "grpc_method")},
                unit="reqps",
            ),
            chart("Queries", {"queries": rate("weir_batch_queries_sum{}")}, "A request may carry many.", unit="cps"),
            chart(
                "Answered with popular items",
                {"share": rate("weir_fallbacks_total{}") + " / " + rate("weir_batch_queries_sum{}")},
                "Unknown users and histories without known items.",
                unit="percentunit",
            ),
        ],
        "Latency": [
            chart(
                "Requests",
                quantiles("grpc_server_handling_seconds", REQUESTS),
                "From the first byte to the last, as the server sees it.",
                unit="s",
            ),
            chart(
                "Stages, 95 %",
                {"{{stage}}": quantile(0.95, "weir_request_stage_seconds", by="le, stage")},
                "Queue: waiting. Tower and search: of the request's batch.",
                unit="s",
            ),
            chart(
                "Slower than 50 ms",
                {
                    "5 minutes": "max (namespace:weir_request_slow:ratio_rate5m{})",
                    "an hour": "max (namespace:weir_request_slow:ratio_rate1h{})",
                    "objective": "vector(0.01)",
                },
                unit="percentunit",
            ),
        ],
        "Errors": [
            chart(
                "Requests without an answer",
                {
                    "5 minutes": "max (namespace:weir_request_errors:ratio_rate5m{})",
                    "an hour": "max (namespace:weir_request_errors:ratio_rate1h{})",
                    "objective": "vector(0.001)",
                },
                unit="percentunit",
            ),
            chart(
                "By code",
                {
                    "all": rate('grpc_server_handled_total{job="weir-serving",grpc_code!="OK"}'),
                    "{{grpc_code}}": rate('grpc_server_handled_total{job="weir-serving",grpc_code!="OK"}', "grpc_code")
                    + " > 0",
                },
                "InvalidArgument and Canceled are the client's.",
                unit="reqps",
            ),
            chart(
                "Refused and dropped",
                {
                    "refused": rate("weir_requests_refused_total{}"),
                    "refused: {{reason}}": rate("weir_requests_refused_total{}", "reason") + " > 0",
                    "dropped": rate("weir_requests_dropped_total{}"),
                },
                "Dropped: the client no longer waited for the answer.",
                unit="reqps",
            ),
        ],
        "Saturation": [
            chart(
                "Queries waiting",
                {
                    "now": "max (weir_queue_queries{})",
                    "peak": "max (max_over_time(weir_queue_queries{}[$__rate_interval]))",
                },
                "New queries are refused at serving.queue_queries (1,024).",
            ),
            chart(
                "Queries in a batch",
                {
                    "mean": rate("weir_batch_queries_sum{}") + " / " + rate("weir_batch_queries_count{}"),
                    "95 %": quantile(0.95, "weir_batch_queries"),
                },
                "Rises with the load: batching absorbs it.",
            ),
            chart(
                "Processor and memory",
                {
                    "cores": rate('process_cpu_seconds_total{job="weir-serving"}'),
                    "GB, largest replica": 'max (process_resident_memory_bytes{job="weir-serving"}) / 1e9',
                },
            ),
        ],
        "Index and bundle": [
            chart("Items", {"items": "max (weir_index_items{})"}, "In the served index."),
            chart(
                "Recall of the index",
                {"index": 'avg (weir_recall_index{k="$k"})'},
                "Share of exact search's best that approximate search finds.",
                unit="percentunit",
                top=1,
            ),
            chart(
                "Fit of the lists",
                {
                    "recall": "max (weir_trainer_index_recall{})",
                    "changed items that fit badly": "max (weir_trainer_index_unfit_ratio{})",
                },
                "By the trainer, at each export; .05 of all items fit badly when the lists were trained.",
                unit="percentunit",
            ),
            chart("Load and warm-up", quantiles("weir_bundle_load_seconds"), unit="s"),
            chart(
                "Bundles served at once",
                {
                    "versions": 'count (count by (version) (weir_bundle_served_info{job="weir-serving"}))',
                    "replicas": 'count (weir_bundle_served_info{job="weir-serving"})',
                },
                "One, and briefly two during a swap; otherwise a replica lags behind.",
            ),
            chart(
                "Newest event served, age",
                {"{{instance}}": "time() - min by (instance) (weir_bundle_max_event_wall_timestamp_seconds{} > 0)"},
                unit="s",
            ),
            chart(
                "Deltas taken, and the pause",
                {
                    "{{how}}, a second": rate("weir_bundle_deltas_total{}", "how"),
                    "in place: seconds of pause a second": rate("weir_bundle_delta_pause_seconds_sum{}"),
                    "the pause, 95 %, s": quantile(0.95, "weir_bundle_delta_pause_seconds") + " >= 0 or vector(0)",
                },
                "Queries wait while the index is changed in place (serving.deltas).",
            ),
        ],
        "Attribution": [
            chart(
                "Click-through by bundle",
                {"{{bundle}}": "max by (bundle) (weir_attribution_click_through{}) or vector(0)"},
                "Share of served lists with a click, of the newest bundles; 0 where no lists are kept.",
                unit="percentunit",
            ),
            chart(
                "Click-through by position",
                {"{{position}}": "max by (position) (weir_attribution_position_click_through{}) or vector(0)"},
                "Share of served lists whose item at this position was clicked.",
                unit="percentunit",
            ),
            chart(
                "Coverage by bundle",
                {"{{bundle}}": "max by (bundle) (weir_attribution_coverage{}) or vector(0)"},
                "Share of a bundle's items that are in at least one served list.",
                unit="percentunit",
            ),
            chart(
                "Served lists, and events that name them",
                {
                    "lists: {{outcome}}": rate("weir_served_lists_total{}", "outcome"),
                    "events: {{outcome}}": rate("weir_attribution_clicks_total{}", "outcome"),
                },
                "Joined events are clicks. Dropped lists: too many waited for the store.",
                unit="cps",
            ),
        ],
        "Histories": [
            chart(
                "Rows of histories", {"rows": "max (weir_history_rows{})"}, "In files; none where they are in Redis."
            ),
            chart(
                "Histories in Redis, behind",
                {
                    "seconds": "max (weir_history_behind_seconds{})",
                    "commits": "max (weir_history_behind_commits{})",
                },
                "As servers see it; 0 where histories are files.",
            ),
            chart(
                "Histories in Redis, lost",
                {
                    "look-ups without an answer": increase("weir_history_unavailable_total{}"),
                    "loads of all users": increase("weir_history_follower_loads_total{}") + " or vector(0)",
                    "failures of the follower": increase("weir_history_follower_errors_total{}") + " or vector(0)",
                },
                "Redis does not answer, or has lost keys: then the follower loads all users again.",
            ),
        ],
    },
)
