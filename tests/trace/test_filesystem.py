"""Which filesystem a path lies on, from mount tables as the kernel writes them (proc(5))."""

from pathlib import Path

import pytest

from evenstep.trace.spool.files import filesystem_type, unfit_for_mapping

MOUNTS = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
25 22 0:22 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=1024k
31 22 0:40 / /data rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2
32 31 0:41 / /data/fast rw,relatime - lustre 10.0.0.1@o2ib:/fast rw
33 22 0:42 / /with\\040space rw - fuse.sshfs host: rw
34 22 0:43 / /over rw - ext4 /dev/sda1 rw
35 34 0:44 / /over rw - btrfs /dev/sdb1 rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me", "ext4"),
        ("/run", "tmpfs"),
        ("/running/late", "ext4"),  # begins like a mount, but lies beside it
        ("/data/set", "nfs4"),
        ("/data/fast/run", "lustre"),  # the innermost mount counts
        ("/with space/run", "fuse.sshfs"),
        ("/over/run", "btrfs"),  # of two mounts on one place the later one is seen
    ],
)
def test_the_innermost_mount_holds_a_path(path, expected):
    assert filesystem_type(Path(path), MOUNTS) == expected


def test_a_mount_table_that_says_nothing_is_no_answer():
    assert filesystem_type(Path("/home"), "") == ""


def test_the_own_mount_table_is_read_where_none_is_given(tmp_path):
    assert filesystem_type(tmp_path) == filesystem_type(
        tmp_path, Path("/proc/self/mountinfo").read_text()
    )


@pytest.mark.parametrize(
    ("fstype", "why"),
    [
        ("nfs4", "nfs4 is a network filesystem"),
        ("fuse.sshfs", "fuse.sshfs is a network filesystem"),
        ("btrfs", "btrfs copies on write"),
        ("ext4", ""),
        ("tmpfs", ""),
        ("", ""),
    ],
)
def test_network_and_copy_on_write_filesystems_are_not_mapped(fstype, why):
    assert unfit_for_mapping(fstype) == why
