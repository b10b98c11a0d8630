"""What is read of torch's schemas, against how torch writes them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed  # whose operations are loaded with it

from evenstep.hooks.torch.install import with_methods
from evenstep.hooks.torch.operations import OPERATIONS, positions


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("tensors", "process_group", "async_op"), (1, 2, None, None)),
        (("output", "input", "process_group", "asyncOp"), (2, 3, None, None)),  # an older spelling
        (("tensors", "process_group", "reduce_op", "root_rank"), (1, None, 3, None)),
        (("tensors", "process_group", "dst", "tag"), (1, None, 2, 3)),
        (("tensors", "process_group", "src", "tag"), (1, None, 2, 3)),
    ],
)
def test_arguments_are_found_by_the_names_that_torch_gives_them(names, found):
    assert positions(SimpleNamespace(arguments=[SimpleNamespace(name=n) for n in names])) == found


def test_only_a_call_without_a_work_has_no_flag_that_says_whether_it_blocks():
    known = [each for each in OPERATIONS if hasattr(torch.ops.c10d, each.name)]
    schemas = {each.name: getattr(torch.ops.c10d, each.name).default._schema for each in known}
    if positions(schemas["allreduce_"])[1] is None:
        pytest.skip("this torch does not tell of most operations whether they block")
    without = [
        each.name for each in known if not each.message and positions(schemas[each.name])[1] is None
    ]
    assert without == ["monitored_barrier_"]
    assert [name for name, schema in schemas.items() if not schema.returns] == without


def test_several_operations_in_one_call_are_known_by_its_name():
    several = {each.name for each in OPERATIONS if each.coalesced}
    assert several == {
        "allreduce_coalesced_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
        "reduce_scatter_tensor_coalesced_",
    }  # fmt: skip
    assert {each.name for each in OPERATIONS if each.message} == {
        "send", "recv_", "recv_any_source_"
    }  # fmt: skip


def test_what_torch_dispatches_is_known_by_the_method_of_a_group():
    """Were torch to rename one of these operations, a trace would say that it is not seen."""
    known = [each.name for each in OPERATIONS if hasattr(torch.ops.c10d, each.name)]
    assert with_methods(torch.distributed.ProcessGroup, [*known, "never_seen_"]) == known
