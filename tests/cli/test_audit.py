"""Learning can be proven again: `streampca audit` against the real broker."""

from pathlib import Path

from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from tests.command_line import assert_one_line, printed, run, variables
from tests.guarantees.harness import D, K, as_json, group, vectors
from tests.kafka_broker import Broker


def test_an_audit_finds_the_same_bytes_and_refuses_other_bytes(
    broker: Broker, topic: str, tmp_path: Path, client: str
) -> None:
    broker.create_topic(topic)
    dead = broker.create_topic(f"{topic}-dead")
    with group(broker, topic, tmp_path, [client], dead_letter_topic=dead) as members:
        members.start()
        for seed in range(3):
            broker.produce(topic, 0, [*as_json(vectors(700, seed)), b"no vector"])
            members.wait_until_learned()
        broker.produce_aborted(topic, 0, [b"[9]"])
        members.wait_until_learned()
        members.workers[0].stop()
        audit = ["audit", "--topic", topic, "--bootstrap-servers", broker.bootstrap, "--store", members.store]
        model = variables({"dimensions": D, "components": K})
        for start in ([], ["--from", 0]):
            output = printed(*audit, *start, **model)
            assert "2105" in output
            assert "the checkpoint has the same bytes" in output
        assert "2,103 records learned again" in output
        assert_one_line(run(*audit, **model, STREAMPCA_CENTER="false"), "made with center=True (now False)", code=2)
        assert_one_line(run(*audit, "--to", 5, **model), "must be two checkpoints of partition 0, or 0", code=2)
        checkpoints = Checkpoints(DirectoryStore(members.store), topic)
        (newest,) = members.newest().values()
        wrong = newest.fold.reject(["undecodable"])
        (members.store / f"checkpoints/{topic}/0/{2105:020d}.npz").unlink()
        checkpoints.save(type(newest)(topic, newest.topic_id, 0, wrong, newest.settings))
        assert_one_line(run(*audit, "--from", 0, **model), "the checkpoint has other bytes")
