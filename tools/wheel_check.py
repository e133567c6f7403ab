"""Is this wheel complete? Prints the platform it is for: manylinux_2_N, N being the newest glibc that anything in it asks for.

usage: wheel_check.py WHEEL   Every library that a file in it needs must be in it, with its licence, or be glibc's own; programs and
modules must look for them where pip will put them. Exit status 1 and a sentence for each fault.
"""
import io
import os
import re
import sys
import zipfile

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

GLIBC = re.compile(r"^(ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl)\.so\.\d+$")
LIBRARIES = "/data/lib/muster/"


def elf_files(wheel):
    for info in wheel.infolist():
        data = wheel.read(info)
        if data[:4] == b"\x7fELF":
            yield info.filename, ELFFile(io.BytesIO(data))


def tags(elf, kind):
    return [getattr(t, kind.split("_")[1].lower()) for s in elf.iter_sections() if isinstance(s, DynamicSection)
            for t in s.iter_tags() if t.entry.d_tag == kind]


def glibc_minors(elf):
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                for version in versions:
                    m = re.match(r"GLIBC_2\.(\d+)", version.name)
                    if m:
                        yield int(m.group(1))


def look(wheel):
    """(faults, newest minor version of glibc, machine)"""
    faults, newest, machine = [], 17, None
    inside = {os.path.basename(n) for n in wheel.namelist() if LIBRARIES in n}
    sources = [wheel.read(n).decode() for n in wheel.namelist() if n.endswith(".dist-info/licenses/SOURCES.txt")]
    for name, elf in elf_files(wheel):
        machine = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}.get(elf.header.e_machine, machine)
        newest = max([newest, *glibc_minors(elf)])
        needed = [n for n in tags(elf, "DT_NEEDED") if not GLIBC.match(n)]
        faults += ["%s needs %s, which is not in the wheel" % (name, n) for n in needed if n not in inside]
        if needed and "/scripts/" in name and "$ORIGIN/../lib/muster" not in tags(elf, "DT_RPATH"):
            faults.append("%s has no DT_RPATH to ../lib/muster: build it with MUSTER_BUNDLE" % name)
        library = os.path.basename(name)
        if LIBRARIES in name and not re.match(r"muster-(\w+\.so|doctor)$", library) and not any("%s: Debian source package" % library in s for s in sources):
            faults.append("%s has no licence beside it" % name)
    return faults, newest, machine


def main(path):
    with zipfile.ZipFile(path) as wheel:
        faults, newest, machine = look(wheel)
    if machine is None:
        faults.append("%s: no program in it is for a machine known here" % path)
    for fault in faults:
        print("wheel: " + fault)
    if not faults:
        print("manylinux_2_%d_%s" % (newest, machine))
    sys.exit(1 if faults else 0)


main(sys.argv[1])
