"""The reference broker: Kafka's log, and what is to speak its protocol over it. Never for production data."""

from broker.log_config import LogConfig
from broker.log_manager import HostedLog, LogManager

__all__ = ["HostedLog", "LogConfig", "LogManager"]
