#!/bin/sh
# slim.sh ENVIRONMENT: removes from an environment what no program in the images loads, and compiles the rest.
set -eu
cd "$1"/lib/python3.*/site-packages
# Arrow's Flight, headers, tests, and the names that only linkers use.
rm -rf pyarrow/include pyarrow/tests pyarrow/src pyarrow/*flight* pyarrow/lib*.so.*.*.* pyarrow/libarrow_python*.so
# Debugging information. Not in `*.libs`: these libraries have been changed by patchelf, and strip breaks numpy's
# ("ELF load command address/offset not page-aligned").
find . -type f \( -name '*.so' -o -name '*.so.[0-9]*' \) -not -path '*.libs/*' -exec strip --strip-debug {} +
# Bytecode that needs no comparison with its source's time: a pod can write none, and would compile at each start.
"$1"/bin/python -m compileall -q --invalidation-mode unchecked-hash .
