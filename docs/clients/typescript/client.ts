// A client of Lockkeeper in TypeScript, with the built-in APIs of Node, Deno, Bun and browsers only.
//
//   node client.ts http://127.0.0.1:7420        Node 22.18 and newer; older versions run the output of tsc
//
// With access control and TLS (NODE_EXTRA_CA_CERTS names the authority for Node, DENO_CERT for Deno):
//
//   NODE_EXTRA_CA_CERTS=ca.pem LOCKKEEPER_AUTH_TOKEN=$(cat ci.token) node client.ts https://locks.example:7420
//
// Copy this file and adapt it. The rules that keep it safe are marked with RULE.

declare const process: { argv: string[]; env: Record<string, string | undefined>; exit(code: number): never };

/** An error of the cell. `code` is stable and meant for programs. */
export class LockkeeperError extends Error {
  code: string;
  constructor(error: { code: string; message: string }) {
    super(error.message);
    this.code = error.code;
  }
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** One session. Everything that it holds ends with it. */
export class Keeper {
  private urls: string[];
  private ttlMs: number;
  private headers: Record<string, string>;
  private session = "";
  private deadline = 0;
  private timer: ReturnType<typeof setInterval> | undefined;

  private constructor(urls: string[], ttlMs: number, token?: string) {
    this.urls = urls;
    this.ttlMs = ttlMs;
    this.headers = token ? { authorization: `Bearer ${token}` } : {};
  }

  static async open(urls: string[], ttlMs = 10_000, owner = "typescript", token?: string): Promise<Keeper> {
    const keeper = new Keeper([...urls], ttlMs, token);
    const sent = performance.now();
    const opened = await keeper.call("session/open", { ttl_ms: ttlMs, owner });
    keeper.session = opened.session as string;
    keeper.setDeadline(sent);
    // RULE: renew three times within each TTL, so that one lost answer does no harm.
    keeper.timer = setInterval(() => void keeper.renew(), ttlMs / 3);
    return keeper;
  }

  private setDeadline(sent: number): void {
    // RULE: count from when the renewal was sent, less a margin for clock drift. This deadline then passes
    // before the cell grants the locks to others.
    this.deadline = sent + this.ttlMs * 0.99 - 2;
  }

  private async renew(): Promise<void> {
    const sent = performance.now();
    try {
      await this.call("session/keepalive", { session: this.session });
      this.setDeadline(sent);
    } catch (error) {
      // Without an answer the deadline decides, not the network.
      if (error instanceof LockkeeperError && ["session_lost", "unauthenticated"].includes(error.code)) this.deadline = 0;
    }
  }

  /** False means: stop the work at once, because the lock may be granted to others. */
  holds(): boolean {
    return performance.now() < this.deadline;
  }

  /** Makes one call. Tries the next node, or the leader, until one answers. */
  async call(path: string, body: object): Promise<Record<string, unknown>> {
    const giveUp = performance.now() + 30_000;
    for (;;) {
      let failed: unknown;
      try {
        // RULE: follow no redirect of HTTP. It could lead out of TLS, and the token would go with it.
        const request: RequestInit = { method: "POST", headers: this.headers, body: JSON.stringify(body), redirect: "manual" };
        const answer = await fetch(`${this.urls[0]}/v1/${path}`, request);
        const found = await answer.json();
        if (answer.ok) return found;
        if (found.error.code === "not_leader" && found.error.leader) {
          // RULE: keep using TLS, or the token would be sent in clear text.
          const scheme = this.urls[0].split("://")[0];
          this.urls = [`${scheme}://${found.error.leader}`, ...this.urls].slice(0, 8);
        } else if (found.error.code === "unavailable" || found.error.code === "not_leader") {
          failed = found.error.message;
          this.urls.push(this.urls.shift()!);
        } else {
          throw new LockkeeperError(found.error);
        }
      } catch (error) {
        if (error instanceof LockkeeperError) throw error;
        failed = (error as Error).cause ?? error;
        this.urls.push(this.urls.shift()!);
      }
      if (performance.now() > giveUp) throw new Error(`no node answers: ${this.urls}: ${failed}`);
      await sleep(50);
    }
  }

  /** Holds the lock while `work` runs. */
  async lock<T>(name: string, waitMs: number, work: (token: number) => Promise<T>): Promise<T> {
    // RULE: use one id for each acquire, the same in all its retries. A retry is then the same request: never a second
    // grant, never a second place in the queue.
    const request = crypto.randomUUID();
    const grant = await this.call("lock/acquire", { session: this.session, lock: name, wait_ms: waitMs, request });
    const token = grant.token as number; // Always below 2^53: exact as a number.
    try {
      return await work(token);
    } finally {
      await this.call("lock/release", { session: this.session, lock: name, token }).catch(() => {});
    }
  }

  /** RULE: the resource checks the token. Here it is a value of the cell; for other resources there are gates. */
  async put(key: string, value: string, lock: string, token: number): Promise<number> {
    const written = await this.call("value/put", { key, value, fence: { lock, token } });
    return written.version as number;
  }

  async close(): Promise<void> {
    clearInterval(this.timer);
    await this.call("session/close", { session: this.session });
  }
}

async function main(): Promise<void> {
  const urls = process.argv.slice(2);
  // RULE: a secret comes from the environment or a file, never from the command line, which every user can read.
  const token = process.env.LOCKKEEPER_AUTH_TOKEN;
  const keeper = await Keeper.open(urls.length > 0 ? urls : ["http://127.0.0.1:7420"], 10_000, "typescript", token);
  const name = "clients/typescript";
  const first = await keeper.lock(name, 5_000, async (token) => {
    if (!keeper.holds()) throw new Error("the session is over");
    await keeper.put(name, "paid", name, token);
    console.log("written under a token");
    return token;
  });
  await keeper.lock(name, 5_000, async (second) => {
    if (second <= first) throw new Error("tokens must rise");
    try {
      await keeper.put(name, "too late", name, first);
    } catch (error) {
      if (!(error instanceof LockkeeperError)) throw error;
      console.log(`the older token is refused: ${error.code}`);
      return;
    }
    throw new Error("the stale token was accepted");
  });
  await keeper.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
