"""The faults of the workers' store and topic, each a method of `Faults`."""

import posixpath
from collections.abc import Collection, Iterable

from streampca.consumer_group.committed import parse_store_metadata
from streampca.fold import model_file
from streampca.fold.checkpoint import decode
from streampca.fold.partitions import BACKFILL, parse_offsets
from streampca.stores import identity
from tests.example_models import newer
from tests.simulation.cluster import SESSION_S
from tests.simulation.disk import FOLDER, STALE_S, File, Volume
from tests.simulation.plan import TOPIC, Fault
from tests.simulation.process_faults import ProcessFaults
from tests.simulation.site import Machine
from tests.simulation.world import World

_STORE = f"/store/checkpoints/{TOPIC}"


class Faults(ProcessFaults):
    """Applies faults to a world of workers, their store and their topic."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world = world
        self._spoiled: set[int] = set()  # partitions whose files were touched: once each, since one must be left
        self._is_trimmed = self._is_expired = False
        self._is_backup = False  # whether the other volume has the identity of the workers' store

    def damage(self, fault: Fault) -> None:
        """Flip the bits of one byte of the newest checkpoint of a partition, or of the newest model.

        Not of a newer release's checkpoint: damaged, nothing says that it is one, and workers rightly fall back.
        """
        partition = fault.target % len(self._world.cluster.logs)
        of_model = fault.target >= 8
        files = self._world.volume.files(f"/store/models/{TOPIC}/" if of_model else f"{_STORE}/{partition}/")
        if len(files) > 1 and (of_model or partition not in self._spoiled) and files[-1] not in self._world.newer_files:
            self._spoiled |= set() if of_model else {partition}
            self._world.volume.entries[files[-1]].flip()

    def misplace(self, fault: Fault) -> None:
        """Copy the checkpoint of another partition, or of another offset, to where the next one may come."""
        files = [path for path in self._world.volume.files(f"{_STORE}/") if BACKFILL not in path]
        if not files:
            return
        source, target = files[fault.target % len(files)], files[-1]
        folder, offset = posixpath.split(target)
        if (partition := int(posixpath.basename(folder))) in self._spoiled or source in self._world.newer_files:
            return
        self._spoiled.add(partition)
        file = self._world.volume.entries[source]
        copy = File(file.data, file.data, is_whole=True, is_damaged=True)
        path = f"{folder}/{int(offset[:20]) + 1 + fault.target % 3:020d}.npz"
        if path not in self._world.volume.entries:
            _put(self._world.volume, path, copy)

    def swap(self, fault: Fault) -> None:
        """The workers restart while another volume is mounted: another store's, or an old backup of theirs.

        Only when the group's offsets show it: they name the store, but only an offset shows that a backup is old.
        """
        if fault.target % 2 and self._has_saved_all() and self._has_identity:
            self._restore_old_backup()
        if not self._world.cluster.committed or (self._is_backup and not self._has_saved_all()):
            return
        for machine in self._world.machines:
            machine.kill()
        self._during(fault.seconds, self._set_stray)

    def unmount(self, fault: Fault) -> None:
        """The volume is not mounted for some time, and the workers continue."""
        if self._has_saved_all():
            self._during(fault.seconds, self._set_stray)

    def expire(self, fault: Fault) -> None:
        """The group's committed offsets expire. Not where only they say that the store or the log is incomplete.

        Nor where only they say that a partition has begun: a worker would begin it again, at another offset. Nor while
        the identity is deleted: only the offsets name the store then; without them, a worker writes another one.
        """
        if self._world.mounted is not self._world.volume or self._is_trimmed or not self._has_identity:
            return
        if not self._may_begin_again() and not self._would_forget_starts(offsets=(), gone=()):
            self._world.cluster.committed.clear()
            self._is_expired = True

    def clock(self, fault: Fault) -> None:
        self._world.wall_offset_s += (fault.target - 6) * 3600 * fault.seconds

    def trim(self, fault: Fault) -> None:
        """Retention removes records that every checkpoint has passed."""
        partition = fault.target % len(self._world.cluster.logs)
        files = self._world.volume.files(f"{_STORE}/{partition}/")
        was_replaced = len(self._world.history.courses(partition)) > 1
        if len(files) > 1 and partition not in self._spoiled and not self._is_expired and not was_replaced:
            self._is_trimmed = True
            self._spoiled.add(partition)  # a damaged checkpoint would need them again
            self._world.history.trim(partition, int(posixpath.basename(files[0])[:20]))

    def mislead(self, fault: Fault) -> None:
        """One machine lists folders as they were, until all their files are others and the group has no offsets."""
        machine, plan = self._find_machine(fault), self._world.plan
        if (plan.keep + 2) * plan.interval_s > STALE_S:
            return  # the listings would be new again
        for partition in range(len(self._world.cluster.logs)):
            machine.mount.names(f"{_STORE}/{partition}")
        machine.mount.stale_until = self._world.scheduler.now + STALE_S
        for place in range(plan.keep + 1):
            self._later(place * plan.interval_s, lambda: self._world.append_to_all(3))
        evicted = [other for other in self._world.machines if (other is machine) == (fault.target >= 6)]
        self._later((plan.keep + 2) * plan.interval_s, lambda: self._expire_and_evict(fault, evicted))

    def relist(self, fault: Fault) -> None:
        """The reader's listings go back to the ones before."""
        self._world.reader.mount.back_until = self._world.scheduler.now + fault.seconds

    def upgrade(self, fault: Fault) -> None:
        """The workers restart, and find a checkpoint of a newer release, until that one takes over."""
        partition, entries = fault.target % len(self._world.cluster.logs), self._world.volume.entries
        files = self._world.volume.files(f"{_STORE}/{partition}/")
        if not files or not entries[path := files[-1]].is_readable:
            return
        ours = entries[path]
        data = newer(ours.data, "checkpoint")
        file = File(data, data, is_whole=True, is_damaged=True)
        _put(self._world.volume, path, file)
        self._world.newer_files.add(path)
        for machine in self._world.machines:
            machine.kill()
        self._later(SESSION_S + 2 + fault.seconds, lambda: self._end_upgrade(path, file, ours))

    def vanish(self, fault: Fault) -> None:
        """A rule deletes the checkpoints of a partition or a backfill, only the newest ones, or the identity.

        Not where only they say that a partition has begun. At the end an operator restores what no worker has written
        again.
        """
        volume, place = self._world.volume, fault.target
        partitions = len(self._world.cluster.logs)
        if self._world.mounted is not volume or self._is_backup or self._spoiled:
            return
        if place == 0:
            if self._world.cluster.committed:  # otherwise a worker that starts may give the store another identity
                self._delete([f"/store/{identity.NAME}"])
        elif place == 1 and self._world.backfills:
            self._delete(volume.files(f"{_STORE}/{BACKFILL}0/"))
        else:
            files = volume.files(f"{_STORE}/{place % partitions}/")
            gone = files if fault.seconds < 3 else files[-1:]
            if not self._would_forget_starts(self._world.cluster.committed, gone):
                self._delete(gone)

    def heal(self) -> None:
        super().heal()
        for path, file in self._world.deleted.items():
            if not self._was_written_again(path, file):
                _put(self._world.volume, path, file)

    def _was_written_again(self, path: str, file: File) -> bool:
        """Whether workers have written a deleted file again, or a checkpoint that takes its place.

        A later checkpoint takes its place, and each one of another topic: if the topic was created again, a checkpoint
        of the deleted topic may be ahead of all that workers save, and they rightly write nothing behind it.
        """
        entries, folder = self._world.volume.entries, posixpath.dirname(path)
        if folder == "/store":  # the identity; if workers refuse another one, their error shows the text of this one
            return path in entries and file.data not in self._find_identities_of_group()
        names = self._world.volume.files(f"{folder}/")
        topics = _find_topics(entries[name] for name in names)
        is_of_other_topic = bool(topics and _find_topics([file]) - topics)
        return is_of_other_topic or any(name >= path for name in names)

    def _find_identities_of_group(self) -> set[bytes]:
        """The files of the identities that the group's offsets name."""
        cluster = self._world.cluster
        stores = [parse_store_metadata(cluster.metadata[partition]) for partition in cluster.committed]
        return {identity.format_file(store.id).encode() for store in stores if store}

    def _delete(self, paths: list[str]) -> None:
        volume = self._world.volume
        for path in paths:
            file = volume.entries.get(path)
            if isinstance(file, File) and path not in self._world.newer_files:
                self._world.deleted[path] = file
                volume.change(posixpath.dirname(path), {path: None})
                volume.flush_folder(posixpath.dirname(path))

    def _seconds(self, fault: Fault) -> float:
        return STALE_S if fault.kind == "mislead" else fault.seconds

    def _has_saved_all(self) -> bool:
        """Whether the group has an offset of every partition."""
        return all(self._world.cluster.committed.get(partition) for partition in range(len(self._world.cluster.logs)))

    @property
    def _has_identity(self) -> bool:
        """Whether the workers' store has its identity: `vanish` may have deleted it."""
        return f"/store/{identity.NAME}" in self._world.volume.entries

    @property
    def _is_start_fixed(self) -> bool:
        """Whether a partition that begins again begins at the same offset: not at the end, nor at a time to come."""
        plan = self._world.plan
        return plan.start == "earliest" or (plan.start == "backfill" and parse_offsets(plan.until) is not None)

    def _would_forget_starts(self, offsets: Collection[int], gone: Collection[str]) -> bool:
        """Whether a partition that has begun would begin elsewhere with only these offsets, and without these files.

        After its workers have ended, only a committed offset, a checkpoint or a model tells that a partition has begun.
        Where none of them is left, nobody can know it, and a worker rightly begins the partition as a new one.
        """
        if self._is_start_fixed:
            return False
        known_now = self._find_known_starts(self._world.cluster.committed, gone=())
        return not known_now <= self._find_known_starts(offsets, gone)

    def _find_known_starts(self, offsets: Collection[int], gone: Collection[str]) -> set[int]:
        """The partitions that have begun, as these offsets, the models, and the checkpoints but these tell."""
        volume, known = self._world.volume, set(offsets)
        for path in volume.files(f"{_STORE}/"):
            if BACKFILL not in path and path not in gone and volume.is_durable(path):
                known.add(int(posixpath.basename(posixpath.dirname(path))))
        for path in volume.files(f"/store/models/{TOPIC}/"):
            file = volume.entries[path]
            if path.endswith(".npz") and file.is_readable:
                known |= model_file.decode(file.data).positions.keys()
        return known

    def _may_begin_again(self) -> bool:
        """Whether a worker may list no checkpoint of a partition that has begun where its log ended."""
        if self._is_start_fixed:
            return False
        folders = [f"{_STORE}/{partition}" for partition in self._world.cluster.committed]
        mounts = [machine.mount for machine in self._world.machines]
        return any(mount.may_list_empty(folder) for mount in mounts for folder in folders)

    def _restore_old_backup(self) -> None:
        """Make the other volume a backup from before the first checkpoint: the same store, but empty."""
        stray, path = self._world.stray, f"/store/{identity.NAME}"
        stray.entries["/store"] = stray.durable["/store"] = FOLDER
        stray.entries[path] = stray.durable[path] = self._world.volume.entries[path]
        self._is_backup = True

    def _expire_and_evict(self, fault: Fault, machines: list[Machine]) -> None:
        self.expire(fault)
        for machine in machines:
            self._evict(machine)

    def _end_upgrade(self, path: str, file: File, ours: File) -> None:
        self._world.newer_files.discard(path)
        if self._world.volume.entries.get(path) is file:
            _put(self._world.volume, path, ours)

    def _set_stray(self, on: bool) -> None:
        self._world.mounted = self._world.stray if on else self._world.volume


def _find_topics(files: Iterable[File]) -> set[str]:
    """The topic ids of those checkpoints that can be read."""
    return {decode(file.data).topic_id for file in files if file.is_readable}


def _put(volume: Volume, path: str, file: File) -> None:
    volume.change(posixpath.dirname(path), {path: file})
    volume.flush_folder(posixpath.dirname(path))
