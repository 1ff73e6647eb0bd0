"""Records of `__consumer_offsets`, in Kafka's formats. A key's version says what the record is.

    key 0, 1   group, topic, partition     value 3   offset, leader epoch, metadata, commit timestamp
    key 2      group                       value 3   protocol type, generation, protocol, leader, state timestamp,
                                                     members: id, instance id, client id, client host, rebalance and
                                                     session timeout, subscription, assignment

A record without a value says that the offset, or the group, is no more. Values 0 to 3 are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.groups.group import Group, Member
from broker.groups.types import Client, CommittedOffset, Protocol
from broker.protocol.primitive_types import Reader, UnreadableRecord, Writer
from purgatory.delayed.delayed_group import GroupState
from purgatory.log_offsets import TopicPartition

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
VALUE_VERSION: Final = 3
MEMBERS_MAX: Final = 1_000_000

Pair = tuple[bytes, bytes | None]


class OffsetKey(NamedTuple):
    """Key of a group's offset of a partition."""

    group_id: str
    topic_partition: TopicPartition


class GroupKey(NamedTuple):
    """Key of a group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member as it is written down, with its subscription for the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it is written down."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None = None
    leader_id: str | None = None
    state_timestamp: int = -1
    members: tuple[StoredMember, ...] = field(default=())

    def to_group(self, group_id: str) -> Group:
        """The group that was: stable, or without members."""
        group = Group(group_id, self.state_timestamp)
        group.generation_id = self.generation_id
        group.protocol_type = self.protocol_type or None
        group.protocol_name = self.protocol_name
        for one in self.members:
            protocols = (Protocol(self.protocol_name or "", one.subscription),)
            member = Member(
                one.member_id,
                one.client,
                one.rebalance_timeout_ms,
                one.session_timeout_ms,
                protocols,
                one.group_instance_id,
                one.assignment,
            )
            group.add(member, self.protocol_type)
        group.leader_id = self.leader_id
        if group.members:
            group.state = GroupState.STABLE
        return group


def encode_offset(group_id: str, key: TopicPartition, offset: CommittedOffset | None) -> Pair:
    """A committed offset, or that there is none any more."""
    name = Writer(OFFSET_KEY_VERSION).string(group_id).string(key.topic).int32(key.partition)
    if offset is None:
        return bytes(name.data), None
    value = Writer(VALUE_VERSION).int64(offset.offset).int32(offset.leader_epoch)
    value.string(offset.metadata).int64(offset.commit_timestamp)
    return bytes(name.data), bytes(value.data)


def encode_group(group: Group, assignments: Mapping[str, bytes]) -> Pair:
    """A group with what its members are (about to be) assigned."""
    value = Writer(VALUE_VERSION).string(group.protocol_type or "").int32(group.generation_id)
    value.string(group.protocol_name).string(group.leader_id).int64(group.state_timestamp).int32(len(group.members))
    for member in group.members.values():
        value.string(member.member_id).string(member.group_instance_id)
        value.string(member.client.client_id).string(member.client.client_host)
        value.int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        value.blob(member.metadata_of(group.protocol_name)).blob(assignments.get(member.member_id, b""))
    return _group_key(group.group_id), bytes(value.data)


def encode_removed_group(group_id: str) -> Pair:
    """The group is no more."""
    return _group_key(group_id), None


def decode_key(key: bytes | None) -> OffsetKey | GroupKey:
    """UnreadableRecord if it is neither."""
    reader = Reader(key)
    version = reader.int16()
    if 0 <= version <= OFFSET_KEY_VERSION:
        return OffsetKey(reader.string(), TopicPartition(reader.string(), reader.int32()))
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    raise UnreadableRecord(f"a key of version {version}")


def decode_offset(value: bytes, appended_offset: int = -1) -> CommittedOffset:
    """UnreadableRecord if it is none."""
    reader = Reader(value)
    version = _known_version(reader)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata, commit_timestamp = reader.string(), reader.int64()
    expire = reader.int64() if version == 1 else -1
    return CommittedOffset(
        offset, leader_epoch, metadata, commit_timestamp, None if expire < 0 else expire, appended_offset
    )


def decode_group(value: bytes) -> StoredGroup:
    """UnreadableRecord if it is none."""
    reader = Reader(value)
    version = _known_version(reader)
    protocol_type, generation_id = reader.string(), reader.int32()
    protocol_name, leader_id = reader.nullable_string(), reader.nullable_string()
    state_timestamp = reader.int64() if version >= 2 else -1
    count = reader.int32()
    if not 0 <= count <= MEMBERS_MAX:
        raise UnreadableRecord(f"a group of {count} members")
    members = tuple(_decode_member(reader, version) for _ in range(count))
    return StoredGroup(protocol_type, generation_id, protocol_name, leader_id, state_timestamp, members)


def _decode_member(reader: Reader, version: int) -> StoredMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client = Client(reader.string(), reader.string())
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    if version == 0:
        rebalance_timeout_ms = session_timeout_ms
    timeouts_ms = (rebalance_timeout_ms, session_timeout_ms)
    return StoredMember(member_id, instance_id, client, *timeouts_ms, reader.blob(), reader.blob())


def _known_version(reader: Reader) -> int:
    version = reader.int16()
    if not 0 <= version <= VALUE_VERSION:
        raise UnreadableRecord(f"a value of version {version}")
    return version


def _group_key(group_id: str) -> bytes:
    return bytes(Writer(GROUP_KEY_VERSION).string(group_id).data)
