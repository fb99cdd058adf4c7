"""The descriptor pool of our own that every generated module registers with.

The official Python client registers the same symbols in the default pool under other file names; two such files in one
pool are refused at import. With a pool of our own both clients live in one process.

The price: a Timestamp or Duration of ours is not google.protobuf's class. Fill it in place (`FromMilliseconds`,
`FromTimedelta`, ...); `CopyFrom(Timestamp())` raises TypeError.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()

for _well_known in (descriptor_pb2, duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_well_known.DESCRIPTOR.serialized_pb)
