"""Floods one HTTP server on the loopback with requests, from a process of its own and from several hosts.

Runs until its standard input ends; then prints how many answers there were by their status, as JSON.

    python -m tests.support.workers.http_flood PORT PATH ...
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections import Counter

HOSTS = tuple(f"127.0.0.{number}" for number in range(2, 6))
CONNECTIONS_OF_A_HOST = 32
"""As many as a worker's server takes from one host."""


async def _ask_in_a_loop(port: int, host: str, paths: list[str], statuses: Counter[str]) -> None:
    for path in itertools.cycle(paths):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
            method = "POST" if path == "/join" else "GET"
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: worker\r\nContent-Length: 0\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            statuses[answer[9:12].decode() or "none"] += 1
        except OSError:
            statuses["refused"] += 1
        await asyncio.sleep(0)


async def flood(port: int, paths: list[str]) -> Counter[str]:
    """Floods until standard input ends; the number of answers by status."""
    statuses: Counter[str] = Counter()
    asking = [
        asyncio.create_task(_ask_in_a_loop(port, host, paths, statuses))
        for host in HOSTS
        for _ in range(CONNECTIONS_OF_A_HOST)
    ]
    await asyncio.to_thread(sys.stdin.read)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return statuses


if __name__ == "__main__":
    print(json.dumps(asyncio.run(flood(int(sys.argv[1]), sys.argv[2:]))), flush=True)
