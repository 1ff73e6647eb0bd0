"""Transactions as administrators see them: listed and described."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from broker.transactions.store import TransactionStore
from broker.transactions.transaction import Transaction, TransactionState, TransactionValues
from purgatory.errors import ApiError, Errors

ANY_DURATION = -1


class ListedTransaction(NamedTuple):
    """One in a list."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """States by name and producers (none: any), and how long it must have been open, in ms."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    duration_ms: int = ANY_DURATION


@dataclass(frozen=True, slots=True)
class ListedTransactions:
    """Transactions that were found, and those of the states asked for that do not exist."""

    error: Errors
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


def list_transactions(store: TransactionStore, wanted: TransactionFilter) -> ListedTransactions:
    """Transactions of this broker. While some are read: COORDINATOR_LOAD_IN_PROGRESS and none."""
    if not store.ownership.is_active:
        return ListedTransactions(Errors.COORDINATOR_NOT_AVAILABLE)
    if store.ownership.loading:
        return ListedTransactions(Errors.COORDINATOR_LOAD_IN_PROGRESS)
    titles = {state.title for state in TransactionState}
    unknown = tuple(state for state in wanted.states if state not in titles)
    found = tuple(
        ListedTransaction(one.transactional_id, one.now.producer_id, one.now.state.title)
        for one in store.transactions.values()
        if _is_wanted(one, wanted, store.clock())
    )
    return ListedTransactions(Errors.NONE, unknown, found)


def _is_wanted(transaction: Transaction, wanted: TransactionFilter, now_ms: float) -> bool:
    now = transaction.now
    if wanted.states and now.state.title not in wanted.states:
        return False
    if wanted.producer_ids and now.producer_id not in wanted.producer_ids:
        return False
    return wanted.duration_ms < 0 or (now.start_ms >= 0 and now_ms - now.start_ms > wanted.duration_ms)


def describe_transaction(store: TransactionStore, transactional_id: str) -> TransactionValues:
    """One transaction. ApiError TRANSACTIONAL_ID_NOT_FOUND, or whose it is."""
    try:
        return store.find(transactional_id).now
    except ApiError as error:
        if error.error is Errors.INVALID_PRODUCER_ID_MAPPING:
            raise ApiError(Errors.TRANSACTIONAL_ID_NOT_FOUND, "there is no such transactional id") from None
        raise
