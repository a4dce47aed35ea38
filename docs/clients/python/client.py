"""A client of Lockkeeper in Python, with the standard library only.

    python3 client.py http://127.0.0.1:7420
    LOCKKEEPER_CA=ca.pem LOCKKEEPER_AUTH_TOKEN_FILE=ci.token python3 client.py https://locks.example:7420

Copy this file and adapt it. The rules that keep it safe are marked with RULE.
"""

import contextlib
import json
import os
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid


class LockkeeperError(Exception):
    """An error of the cell. `code` is stable and meant for programs."""

    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]
        self.details = error


def token_from_environment():
    """RULE: a secret comes from a file or the environment, never from the command line, which every user can read."""
    if file := os.environ.get("LOCKKEEPER_AUTH_TOKEN_FILE"):
        with open(file, encoding="ascii") as lines:
            return lines.read().strip()
    return os.environ.get("LOCKKEEPER_AUTH_TOKEN")


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """RULE: follow no redirect of HTTP. It could lead out of TLS, and the token would go with it."""

    def redirect_request(self, *_):
        return None


class Keeper:
    """One session. Everything that it holds ends with it."""

    def __init__(self, urls, ttl_ms=10_000, owner=socket.gethostname(), token=None, ca=None):
        self.urls = list(urls)
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        # The authority of the nodes' certificates; by default, the authorities that the system trusts.
        tls = ssl.create_default_context(cafile=ca)
        self.http = urllib.request.build_opener(NoRedirects, urllib.request.HTTPSHandler(context=tls))
        self.ttl = ttl_ms / 1000
        sent = time.monotonic()
        self.session = self.call("session/open", ttl_ms=ttl_ms, owner=owner)["session"]
        self._set_deadline(sent)
        self._closed = threading.Event()
        threading.Thread(target=self._renew, daemon=True).start()

    def _set_deadline(self, sent):
        # RULE: count from when the renewal was sent, less a margin for clock drift. This deadline then passes
        # before the cell grants the locks to others.
        self.deadline = sent + self.ttl * 0.99 - 0.002

    def _renew(self):
        # RULE: renew three times within each TTL, so that one lost answer does no harm.
        while not self._closed.wait(self.ttl / 3):
            sent = time.monotonic()
            try:
                self.call("session/keepalive", session=self.session)
                self._set_deadline(sent)
            except LockkeeperError as refused:
                if refused.code in ("session_lost", "unauthenticated"):
                    self.deadline = 0
                    return
            except OSError:
                pass  # The deadline decides, not the network.

    def holds(self):
        """False means: stop the work at once, because the lock may be granted to others."""
        return time.monotonic() < self.deadline

    def call(self, path, **body):
        """Makes one call. Tries the next node, or the leader, until one answers."""
        give_up = time.monotonic() + 30
        while True:
            request = urllib.request.Request(f"{self.urls[0]}/v1/{path}", json.dumps(body).encode(), self.headers)
            try:
                with self.http.open(request, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as failed:
                error = json.load(failed)["error"]
                if error["code"] == "not_leader" and error.get("leader"):
                    # RULE: keep using TLS, or the token would be sent in clear text.
                    scheme = self.urls[0].split("://")[0]
                    self.urls.insert(0, f"{scheme}://{error['leader']}")
                    del self.urls[8:]
                elif error["code"] not in ("unavailable", "not_leader"):
                    raise LockkeeperError(error) from None
                else:
                    self.urls.append(self.urls.pop(0))
            except OSError as failed:
                error = failed
                self.urls.append(self.urls.pop(0))
            if time.monotonic() > give_up:
                raise OSError(f"no node answers: {self.urls}: {error}")
            time.sleep(0.05)

    @contextlib.contextmanager
    def lock(self, name, wait_ms=0):
        # RULE: use one id for each acquire, the same in all its retries. A retry is then the same request: never a
        # second grant, never a second place in the queue.
        grant = self.call(
            "lock/acquire", session=self.session, lock=name, wait_ms=wait_ms, request=str(uuid.uuid4())
        )
        try:
            yield grant["token"]
        finally:
            with contextlib.suppress(LockkeeperError):
                self.call("lock/release", session=self.session, lock=name, token=grant["token"])

    def put(self, key, value, lock, token):
        # RULE: the resource checks the token. Here it is a value of the cell; for other resources there are gates.
        return self.call("value/put", key=key, value=value, fence={"lock": lock, "token": token})["version"]

    def close(self):
        self._closed.set()
        self.call("session/close", session=self.session)


def main():
    urls = sys.argv[1:] or ["http://127.0.0.1:7420"]
    keeper = Keeper(urls, token=token_from_environment(), ca=os.environ.get("LOCKKEEPER_CA"))
    with keeper.lock("clients/python", wait_ms=5_000) as first:
        assert keeper.holds()
        keeper.put("clients/python", "paid", "clients/python", first)
        print("written under a token")
    with keeper.lock("clients/python", wait_ms=5_000) as second:
        assert second > first
        try:
            keeper.put("clients/python", "too late", "clients/python", first)
            sys.exit("the stale token was accepted")
        except LockkeeperError as refused:
            print(f"the older token is refused: {refused.code}")
    keeper.close()


if __name__ == "__main__":
    main()
