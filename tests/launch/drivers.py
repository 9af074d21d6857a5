"""A fake GPU library that pins memory, or refuses to, and records its calls."""

import shutil
import subprocess

import pytest

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
static int noted(const char *what, long number) {
    FILE *file = fopen(getenv("DRIVER_LOG"), "a");
    fprintf(file, "%s %ld\n", what, number);
    return fclose(file);
}
int PREFIX_SetDevice(int device) { return noted("device", device); }
int PREFIX_HostRegister(void *memory, size_t size, unsigned flags) {
    ((char *) memory)[size - 1] = ((char *) memory)[size - 1];  /* it exists and is writable */
    noted("memory", (long) size);
    return atoi(getenv("DRIVER_STATUS")) + 0 * flags;
}
"""


class Driver:
    """The fake libraries of a process.

    Attributes:
        libraries: as :data:`launch.pinned_memory.LIBRARIES`.
    """

    def __init__(self, folder, monkeypatch, prefix="cuda", status=0):
        if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
            pytest.skip("there is no C compiler")
        source, library, self._log = (
            folder / "driver.c",
            folder / f"lib{prefix}.so",
            folder / f"{prefix}.log",
        )
        source.write_text(SOURCE.replace("PREFIX_", prefix))
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        monkeypatch.setenv("DRIVER_LOG", str(self._log))
        monkeypatch.setenv("DRIVER_STATUS", str(status))
        self.libraries = ((str(folder / "libnone.so"), "cuda"), (str(library), prefix))

    def calls(self):
        """Return the recorded calls, in order."""
        return [
            (text, int(number))
            for text, number in map(str.split, self._log.read_text().splitlines())
        ]
