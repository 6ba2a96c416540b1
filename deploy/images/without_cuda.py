"""Takes out of an installed torch what only a GPU needs: ``python without_cuda.py``, while an image is built.

The usual index has torch for CUDA only, and torch is linked against CUDA's libraries, so that it does not even load
without them. Of these gigabytes a process without a GPU runs next to nothing. So each library is replaced by a link to
a small one that torch loads anyway, and what torch would have found in it becomes a weak reference: one that may stay
undefined. The libraries in `_KEPT` are small, and are called when torch is loaded. A build of torch for CPUs is left
as it is.
"""

import importlib.util
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_KEPT: Final = ("libcudart.so", "libcupti.so", "libcufile.so")
_LAZY: Final = ("libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so")
"""Parts of torch that are loaded when a GPU is used."""
_COMPILERS: Final = ("triton", "nvidia/cu13/include", "torch/include")
_DYNSYM: Final = 11
_WEAK: Final = 2


def main() -> None:
    """Change the torch of this interpreter."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("there is no torch")
    packages = Path(found.origin).parents[1]
    torch, nvidia = packages / "torch/lib", packages / "nvidia"
    if not nvidia.is_dir():
        return
    before = _size(packages)
    for name in _LAZY:
        (torch / name).unlink(missing_ok=True)
    for name in _COMPILERS:
        shutil.rmtree(packages / name, ignore_errors=True)
    for library in [path for path in nvidia.rglob("*") if path.is_file() and ".so" in path.name]:
        if not library.name.startswith(_KEPT):
            library.unlink()
            library.symlink_to(os.path.relpath(torch / "libtorch_global_deps.so", library.parent))
    for library in torch.glob("lib*.so"):
        weaken(library)
    sys.stdout.write(f"{before >> 20} MiB of packages, {_size(packages) >> 20} without CUDA\n")


def weaken(library: Path) -> int:
    """Let every undefined symbol of a library (ELF, 64 bits, little-endian) be missing; return how many there are."""
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        places = list(_undefined(data))
        for place in places:
            # The type of the symbol stays, its binding is weak.
            data[place] = data[place] & 0x0F | _WEAK << 4
    return len(places)


def _undefined(data: mmap.mmap) -> Iterator[int]:
    """Yield where the binding of each undefined symbol is."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no library of 64 bits, little-endian")
    sections, size, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
    for section in range(sections, sections + size * count, size):
        if struct.unpack_from("<I", data, section + 4)[0] != _DYNSYM:
            continue
        start, length = struct.unpack_from("<QQ", data, section + 24)
        # The first symbol is none.
        for symbol in range(start + 24, start + length, 24):
            if struct.unpack_from("<H", data, symbol + 6)[0] == 0:
                yield symbol + 4


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


if __name__ == "__main__":
    main()
