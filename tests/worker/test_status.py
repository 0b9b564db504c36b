"""A worker's counts as the status command reads and adds them up."""

from worker.kafka import TopicPartition
from worker.metrics import MessageBook, Metrics, Tally
from worker.status import Accounts, PartitionStatus, WorkerAnswer, added_up, read_accounts

ZERO = TopicPartition("workflow-runs", 0)


def exposition(*, is_stopped: bool = False) -> str:
    metrics = Metrics()
    book = MessageBook(metrics)
    book.take(*ZERO, 10)
    tally = Tally(6)
    tally.projected, tally.ignored["no_change"], tally.dead_lettered["invalid_json"] = 3, 2, 1
    book.settle(*ZERO, tally)
    if is_stopped:
        metrics.watch("stopped_partitions", lambda: [(("workflow-runs", "0"), 1.0)])
    metrics.watch("lag_messages", lambda: [(("project", "workflow-runs", "0"), 99.0)])
    return metrics.exposition().decode()


def test_the_accounts_of_a_worker_are_its_metrics() -> None:
    [(place, accounts)] = read_accounts(exposition(is_stopped=True)).items()
    assert place == ZERO
    assert accounts == Accounts(10, 3, {"no_change": 2}, {"invalid_json": 1}, 4, is_stopped=True)
    assert accounts.unaccounted == 0


def test_accounts_of_several_workers_are_added_up() -> None:
    one = read_accounts(exposition())
    total = added_up([WorkerAnswer("a", one), WorkerAnswer("b", {}, "does not answer"), WorkerAnswer("c", one)])
    assert total == {ZERO: Accounts(20, 6, {"no_change": 4}, {"invalid_json": 2}, 8)}


def test_what_the_equation_leaves_over_shows() -> None:
    assert Accounts(consumed=5, projected=3, ignored={"a": 1}, in_flight=0).unaccounted == 1


def test_the_lag_of_a_group_that_never_committed_is_all_there_is() -> None:
    def lag(committed: int | None) -> int:
        return PartitionStatus("fold", ZERO, 5, 20, committed, None).lag

    assert [lag(None), lag(5), lag(18), lag(20), lag(2)] == [15, 15, 2, 0, 15]
