"""What kind of filesystem a path lies on, as far as a memory-mapped file must know."""

from __future__ import annotations

from pathlib import Path

#: A mapped page may fail to be written back, or block on a server: never map these.
NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "smb3", "smbfs", "virtiofs", "wekafs"}
)
#: Allocated blocks are not reserved for rewriting: a full disk still kills a mapped writer.
COPY_ON_WRITE = frozenset({"bcachefs", "btrfs", "zfs"})

_MOUNTS = Path("/proc/self/mountinfo")


def filesystem_type(path: Path, mountinfo: str | None = None) -> str:
    """Type of the filesystem that holds `path` ("ext4", "nfs4", …); "" where it cannot be told."""
    if mountinfo is None:
        try:
            mountinfo = _MOUNTS.read_text()
        except OSError:
            return ""
    target = str(path.resolve())
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        mount = fields[4].replace("\\040", " ")
        inside = mount == "/" or target == mount or target.startswith(mount + "/")
        if inside and len(mount) >= best:
            best, found = len(mount), right.split()[0]
    return found


def unfit_for_mapping(fstype: str) -> str:
    """Why a mapped spool is not safe on this filesystem; "" where it is."""
    if fstype in NETWORK or fstype.startswith("fuse"):
        return f"{fstype} is a network filesystem"
    if fstype in COPY_ON_WRITE:
        return f"{fstype} copies on write"
    return ""
