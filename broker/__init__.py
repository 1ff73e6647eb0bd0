"""The reference broker: Kafka's log, and what is to speak its protocol over it. Never for production data."""

from broker.log.config import LogConfig
from broker.log.manager import HostedLog, LogManager

__all__ = ["HostedLog", "LogConfig", "LogManager"]
