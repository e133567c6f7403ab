"""Every C example of docs/sdk.md and muster(3) compiles as it is printed, as C99 and as C++11: whole programs by themselves, the
shorter ones in the frame that the page shows."""
import os
import re
import shutil
import subprocess

import pytest

SOURCE = os.environ.get("MUSTER_SOURCE", os.path.join(os.path.dirname(__file__), "..", ".."))
INCLUDE = os.path.join(SOURCE, "worker-sdk", "include")
PAGES = {"sdk.md": os.path.join(SOURCE, "docs", "sdk.md"), "muster.3": os.path.join(SOURCE, "docs", "man", "muster.3.in")}
PLACE = "/* the example */"
FLAGS = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
COMPILERS = {"c": ["gcc", "-std=c99", "-xc"], "c++": ["g++", "-std=c++11", "-xc++"]}


def blocks_of_markdown(text):
    """(line, code) of each fence that says c; code that looks like C outside of one is an example that nobody compiles."""
    found = []
    for m in re.finditer(r"^```c\n(.*?)^```$", text, re.S | re.M):
        found.append((text.count("\n", 0, m.start()) + 2, m.group(1)))
    outside = re.sub(r"^```c\n.*?^```$", "", text, flags=re.S | re.M)
    stray = [s for s in outside.split("\n") if re.match(r"    .*(;\s*(/\*.*\*/)?|\{)$", s)]
    assert not stray, f"C outside of a ```c block: {stray}"
    return found


def blocks_of_man(text):
    """(line, code) of each .EX but those of the section on Python."""
    found = []
    python = text.index(".SS Python"), text.index(".SH ENVIRONMENT")
    for m in re.finditer(r"^\.EX\n(.*?)^\.EE$", text, re.S | re.M):
        if not python[0] < m.start() < python[1]:
            found.append((text.count("\n", 0, m.start()) + 2, m.group(1).replace("\\-", "-").replace("\\e", "\\")))
    return found


def is_headers(code):
    return all(s.startswith("#include") for s in code.strip().split("\n"))


def programs(page):
    """(line, a translation unit that has the example of that line) for each example of a page."""
    with open(PAGES[page], encoding="utf-8") as f:
        text = f.read()
    blocks = blocks_of_markdown(text) if page.endswith(".md") else blocks_of_man(text)
    headers = "".join(code for _, code in blocks if is_headers(code))
    frames = [code for _, code in blocks if PLACE in code]
    assert len(frames) == 1, f"{page} has {len(frames)} frames with '{PLACE}'"
    for line, code in blocks:
        if PLACE in code or "int main(" in code:
            whole = code if "int main(" in code else headers + code
        elif is_headers(code):
            whole = code
        else:
            whole = headers + frames[0].replace(PLACE, "{\n" + code + "}")
        yield line, whole


def compile_as(language, unit):
    words = [*COMPILERS[language], *FLAGS, f"-I{INCLUDE}", "-"]
    return subprocess.run(words, input=unit, capture_output=True, text=True, timeout=60, check=False)


EXAMPLES = [pytest.param(unit, id=f"{page}:{line}") for page in PAGES for line, unit in programs(page)]


@pytest.mark.parametrize("language", COMPILERS)
@pytest.mark.parametrize("unit", EXAMPLES)
def test_an_example_compiles(unit, language):
    if shutil.which(COMPILERS[language][0]) is None:
        pytest.skip(f"{COMPILERS[language][0]} is not installed")
    p = compile_as(language, unit)
    assert p.returncode == 0, f"{p.stderr}\n{unit}"


@pytest.mark.parametrize("page", PAGES)
def test_each_header_that_a_page_names_has_an_example(page):
    """So that an example which the reading above loses is missed."""
    units = "".join(unit for _, unit in programs(page))
    used = set(re.findall(r"\bmuster_(store|comm|sampler|ddp|checkpoint|progress)\w*\(", units))
    assert used == {"store", "comm", "sampler", "ddp", "checkpoint", "progress"}


@pytest.mark.parametrize("language", COMPILERS)
def test_a_wrong_example_does_not(language):
    """The frame hides no fault: a name that is not declared, a call with the wrong arguments, a variable that nobody reads."""
    if shutil.which(COMPILERS[language][0]) is None:
        pytest.skip(f"{COMPILERS[language][0]} is not installed")
    frame = next(unit for _, unit in programs("sdk.md") if PLACE in unit)
    for wrong in ("nobody_declared_this();", "r = muster_store_get(m, 1);", "int unused = 1;"):
        p = compile_as(language, frame.replace(PLACE, wrong))
        assert p.returncode != 0, wrong
