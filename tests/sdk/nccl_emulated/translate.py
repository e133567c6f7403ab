"""Turns CUDA's kernel<<<grid, block, shared, stream>>>(arguments); into C++. usage: translate.py FROM.cu TO.cpp"""
import re
import sys


def parts(text):
    """Split at commas outside brackets."""
    out, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            out.append(text[last:i].strip())
            last = i + 1
    return out + [text[last:].strip()]


def launch(m):
    grid, block = parts(m.group(2).replace("\\\n", " "))[:2]
    return f"emulate(dim3({grid}), dim3({block}), [&] {{ {m.group(1)}({m.group(3)}); }});"


with open(sys.argv[1]) as f:
    source = f.read()
source, count = re.subn(r"(\w+)<<<(.*?)>>>\((.*?)\);", launch, source, flags=re.S)
assert count >= 3 and "<<<" not in source, "no kernel launch was found: has cuda.cu changed?"
with open(sys.argv[2], "w") as f:
    f.write(f'#line 1 "{sys.argv[1]}"\n' + source)
