"""What can be wrong with a topic, as errors that name it."""

from weir.contracts import UserError

__all__ = ["BrokerAwayError", "KafkaSettingsError", "StoppedPartitionError", "TopicMissingError"]


class BrokerAwayError(UserError):
    """No broker, or no schema registry, answers, or one refuses to."""


class KafkaSettingsError(UserError):
    """The client cannot be made with these settings."""


class TopicMissingError(UserError, FileNotFoundError):
    """The brokers know no topic of this name."""


class StoppedPartitionError(UserError):
    """Messages that are not committed are no longer in the broker."""

    hint = "restore them, or continue without them: --accept-gap"
