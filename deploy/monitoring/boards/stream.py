"""The job on Flink: whether it runs, how far it is, and what it leaves behind."""

from typing import Final

from deploy.monitoring.grafana import board, chart, increase, quantiles, rate, single

__all__ = ["BOARD"]

_WATERMARK_AGE: Final = "time() - max by (partition) (weir_pipeline_partition_watermark_timestamp_seconds{} > 0)"
_UNANSWERED: Final = "weir_pipeline_partition_unanswered_since_timestamp_seconds{}"

BOARD = board(
    "weir-stream",
    "Weir: the stream on Flink",
    "The job on Flink: whether it runs, how far it is, and what it leaves behind. Empty under `weir ingest`.",
    {
        "Now": [
            single(
                "Job runs",
                'max (weir_pipeline_job_state{state="running"})',
                "1 in the state running. 0 also while Flink does not answer.",
                limits={"red": None, "green": 1},
            ),
            single(
                "Restarts in an hour",
                "sum (increase(weir_pipeline_job_restarts_total{}[1h]))",
                limits={"green": None, "orange": 1, "red": 30},
            ),
            single(
                "Exceptions in an hour",
                "sum (increase(weir_pipeline_job_failures_total{}[1h]))",
                "The log of `weir stream` has the newest.",
                limits={"green": None, "orange": 1, "red": 30},
            ),
            single(
                "Newest checkpoint, age",
                "time() - max (weir_pipeline_checkpoint_timestamp_seconds{})",
                "What a restart of the job reads again.",
                unit="s",
                limits={"green": None, "orange": 60, "red": 600},
            ),
            single(
                "Rows dropped by Beam",
                "sum (increase(weir_pipeline_dropped_late_rows_total{}[1h]))",
                "In an hour. It must be 0: another job brings them.",
                limits={"green": None, "red": 1},
            ),
            single(
                "Partitions stopped",
                "sum (weir_pipeline_stopped_partitions{})",
                "Messages are gone from the broker before they were committed.",
                limits={"green": None, "red": 1},
            ),
        ],
        "The job": [
            chart(
                "State",
                {
                    "{{state}}": "max by (state) (weir_pipeline_job_state{}) > 0",
                    "Flink does not answer": "max (weir_pipeline_engine_away{}) > 0",
                    "no broker answers": "max (weir_pipeline_brokers_away{}) > 0",
                },
                top=1,
            ),
            chart(
                "Restarts and exceptions",
                {
                    "restarts": increase("weir_pipeline_job_restarts_total{}"),
                    "exceptions": increase("weir_pipeline_job_failures_total{}"),
                },
                "A job that fails is started again for ever.",
            ),
            chart("Rows dropped by Beam", {"rows": increase("weir_pipeline_dropped_late_rows_total{}")}),
        ],
        "Checkpoints": [
            chart(
                "Age of the newest",
                {"age": "time() - max (weir_pipeline_checkpoint_timestamp_seconds{})"},
                unit="s",
            ),
            chart("Size", {"MB": "max (weir_pipeline_checkpoint_bytes{}) / 1e6"}, "Grows with open windows."),
            chart(
                "Duration and failures",
                {
                    "seconds": "max (weir_pipeline_checkpoint_duration_seconds{})",
                    "failed": increase("weir_pipeline_checkpoint_failures_total{}"),
                },
                "Wall time of the newest; not completed in a step of the chart.",
            ),
        ],
        "How far": [
            chart(
                "Watermark of each partition, age",
                {"{{partition}}": _WATERMARK_AGE},
                "The oldest one holds the windows. Event time: a replay shows the age of its log.",
                unit="s",
            ),
            chart(
                "Watermark of the job, age",
                {
                    "job": "time() - max (weir_pipeline_job_watermark_timestamp_seconds{} > 0)",
                    "committed": "max (namespace:weir_watermark:age_seconds{})",
                },
                "Of the task that is behind all others, and of the newest window.",
                unit="s",
            ),
            chart(
                "Offsets that no commit has",
                {"{{partition}}": "max by (partition) (weir_pipeline_unread_offsets{})"},
                "A sawtooth as long as a window is normal.",
            ),
            chart(
                "Time without a commit",
                {
                    "offsets wait": "time() - max (weir_pipeline_uncommitted_since_timestamp_seconds{})",
                    "{{partition}}: no broker answers": f"time() - max by (partition) ({_UNANSWERED} > 0)",
                },
                "While the topic has messages that are in no commit.",
                unit="s",
            ),
        ],
        "Commits": [
            chart(
                "Rows",
                {
                    "events": rate("weir_pipeline_events_total{}"),
                    "late": rate("weir_pipeline_late_events_total{}"),
                    "duplicates": rate("weir_pipeline_duplicates_total{}"),
                    "dead letters": rate("weir_pipeline_dead_letters_total{}"),
                    "without a value": rate("weir_pipeline_valueless_messages_total{}"),
                },
                "Late rows make panes of their own.",
                unit="cps",
            ),
            chart(
                "Panes committed",
                {"panes": increase("weir_pipeline_window_commit_seconds_count{}")},
                "In a step of the chart: each window once, and again for late rows.",
            ),
            chart("Time of a commit", quantiles("weir_pipeline_window_commit_seconds"), unit="s"),
        ],
    },
)
