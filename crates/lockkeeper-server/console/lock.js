// One lock: who holds it, who waits, what happened to it.

import { figure, h, list, table, td } from "./dom.js";
import { cellNow, count, duration, happened, since, until, who } from "./format.js";
import { timeline } from "./draw.js";
import { askToForce } from "./force.js";

const waiting = (lock) => (lock.waiting === 1 ? "1 waits" : `${count(lock.waiting)} wait`);

/** How it stands, in a sentence. */
function sentence(lock, asOf) {
  if (lock.holders.length > 0) {
    const taken = lock.holders.reduce((sum, holder) => sum + holder.permits, 0);
    const how = lock.capacity > 1 ? `${taken} of ${lock.capacity} permits are taken` : `held ${lock.holders[0].mode === "shared" ? `by ${lock.holders.length}, shared` : "by one alone"}`;
    return [how, lock.waiting > 0 ? `, ${waiting(lock)}` : ", nobody waits"];
  }
  if (lock.closed_ms > 0) return ["closed by a lock-delay for ", until(asOf + lock.closed_ms), ": its last holder was lost"];
  return [lock.waiting > 0 ? `free, ${waiting(lock)} for it together with others` : "free"];
}

export function lock() {
  let now;
  const name = h("h2");
  const state = h("p", { id: "lock-state", class: "soft" });
  const force = h("button", { type: "button", class: "danger", id: "force-open", onclick: () => askToForce(now) }, "Free it by force…");
  const holders = table("Holders", ["Who", "Mode", "#Token", "#Held for", "Session"]);
  const queue = table("Waiting", ["#Position", "Who", "Mode", "#Waited", "Session"]);
  const line = h("div", { class: "wide" });
  const legend = h("ul", { class: "legend" },
    h("li", {}, h("i", { class: "k-now" }), "held now"), h("li", {}, h("i", { class: "k-released" }), "released"),
    h("li", {}, h("i", { class: "k-expired" }), "lost: session expired"), h("li", {}, h("i", { class: "k-forced" }), "taken by force"));
  const events = table("The last events, the newest first", ["What", "Who", "#Token", "#Took", "#When", "Session"]);
  const root = h("section", {}, name, h("div", { class: "row" }, state, force), h("div", { class: "two" }, holders.whole, queue.whole),
    h("h3", {}, "History"), h("div", { class: "scroll" }, line), legend, events.whole);
  let drawn = "";
  return {
    root,
    title: (asked) => asked.name ?? "Lock",
    ask: (asked) => { name.textContent = asked.name ?? ""; },
    wants: (asked) => ({ view: "lock", name: asked.name ?? "" }),
    update(data, around) {
      now = data.lock;
      const asOf = around.as_of_ms;
      list(state, [now], () => "state", (one) => h("span", {}, sentence(one, asOf), `. Last token ${count(one.last_token)}.`));
      list(holders.body, now.holders, (holder) => holder.token + holder.session, (holder) => h("tr", {},
        h("th", { scope: "row" }, who(holder)), td("Mode", holder.mode, now.capacity > 1 ? `, ${holder.permits} permits` : ""),
        figure("Token", count(holder.token)), figure("Held for", since(asOf - holder.held_ms)), td("Session", holder.session)));
      holders.title.textContent = now.holders.length === 0 ? "Nobody holds it" : "Holders";
      list(queue.body, now.queue, (waiter) => waiter.session + waiter.position, (waiter) => h("tr", {},
        figure("Position", waiter.position), h("th", { scope: "row" }, who(waiter)), td("Mode", waiter.mode),
        figure("Waited", since(asOf - waiter.waited_ms)), td("Session", waiter.session)));
      queue.title.textContent = now.waiting === 0 ? "Nobody waits" : now.waiting > now.queue.length ? `The first ${now.queue.length} of ${count(now.waiting)} who wait` : "Waiting";
      const sign = JSON.stringify(data.history.events.map((event) => [event.at_ms, event.what, event.token]));
      // A drawing of what is held goes on to the right; others need no new one.
      if (sign !== drawn || now.holders.length > 0) {
        line.replaceChildren(timeline(data.history.events, asOf, cellNow()));
        drawn = sign;
      }
      list(events.body, data.history.events, (event) => event.at_ms + event.what + event.token + event.session, (event) => h("tr", { "data-what": event.what },
        td("What", happened[event.what] ?? event.what, event.reason ? h("div", { class: "soft" }, "“", event.reason, "”") : ""),
        h("th", { scope: "row" }, who(event)), figure("Token", count(event.token)),
        figure("Took", event.what === "granted" ? (event.waited_ms > 0 ? "waited " + duration(event.waited_ms) : "at once") : "held " + duration(event.held_ms)),
        figure("When", since(event.at_ms, " ago")), td("Session", event.session)));
    },
  };
}
