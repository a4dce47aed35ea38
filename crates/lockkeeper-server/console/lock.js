// One lock: its holders, its waiters, its history.

import { h, list, numberCell, rowHead, table, td, tr } from "./dom.js";
import { cellNow, count, duration, eventText, owner, since, timestamp, until } from "./format.js";
import { drawingWidth, timeline } from "./draw.js";
import { openForceDialog } from "./force.js";

const waiting = (lock) => `${count(lock.waiting)} waiting`;

/** The state of a lock as a sentence. */
function sentence(lock, asOf) {
  if (lock.holders.length > 0) {
    const taken = lock.holders.reduce((sum, holder) => sum + holder.permits, 0);
    const atLeast = lock.more_holders ? "more than " : "";
    const how = lock.capacity > 1 ? `${atLeast}${taken} of ${lock.capacity} permits in use` : (lock.holders[0].mode === "shared" ? `shared by ${atLeast}${lock.holders.length}` : "held exclusively");
    return [how, lock.waiting > 0 ? `, ${waiting(lock)}` : ", no waiters"];
  }
  if (lock.closed_ms > 0) return ["in lock-delay for another ", until(asOf + lock.closed_ms), " (its last holder was lost)"];
  if (lock.last_token === 0) return ["free; no earlier holder is recorded"];
  return [lock.waiting > 0 ? `free, ${waiting(lock)} for it together with other locks` : "free"];
}

export function lock() {
  let now;
  const name = h("h2");
  const state = h("p", { id: "lock-state", class: "soft" });
  const force = h("button", { type: "button", class: "danger", id: "force-open", onclick: () => openForceDialog(now) }, "Force release…");
  const holders = table("Holders", ["Owner", "Mode", "#Token", "#Held for", "Session"], "holders");
  const queue = table("Waiting", ["#Position", "Owner", "Mode", "#Waiting for", "Session"], "queue");
  const line = h("div");
  const drawing = h("div", {}, line);
  const legend = h("ul", { class: "legend" },
    h("li", {}, h("i", { class: "k-now" }), "held now"), h("li", {}, h("i", { class: "k-released" }), "released"),
    h("li", {}, h("i", { class: "k-expired" }), "lost: session expired"), h("li", {}, h("i", { class: "k-forced" }), "force-released or lost to an older scope"));
  const events = table("Last events, newest first", ["Event", "Owner", "#Token", "#Duration", "#When", "Session"]);
  drawing.append(legend);
  const root = h("section", {}, name, h("div", { class: "row" }, state, force), h("div", { class: "two" }, holders.whole, queue.whole),
    h("h3", {}, "History"), drawing, events.whole);
  let drawn = "";
  return {
    root,
    title: (parameters) => parameters.name ?? "Lock",
    setParameters: (parameters) => { name.textContent = parameters.name ?? ""; },
    query: (parameters) => ({ view: "lock", name: parameters.name ?? "" }),
    update(data, node) {
      now = data.lock;
      const asOf = node.as_of_ms;
      list(state, [now], () => "state", (one) => h("span", {}, sentence(one, asOf), one.last_token > 0 ? `. Last token ${count(one.last_token)}.` : "."));
      list(holders.body, now.holders, (holder) => holder.token + holder.session, (holder) => tr({},
        rowHead(owner(holder)), td("Mode", now.capacity === 1 ? holder.mode : holder.permits === 1 ? "1 permit" : `${holder.permits} permits`),
        numberCell("Token", count(holder.token)), numberCell("Held for", since(asOf - holder.held_ms)), td("Session", holder.session)));
      holders.title.textContent = now.holders.length === 0 ? "No holders" : now.more_holders ? `The first ${now.holders.length} holders` : "Holders";
      list(queue.body, now.queue, (waiter) => waiter.session + waiter.position, (waiter) => tr({},
        numberCell("Position", waiter.position), rowHead(owner(waiter)), td("Mode", waiter.mode),
        numberCell("Waiting for", since(asOf - waiter.waited_ms)), td("Session", waiter.session)));
      queue.title.textContent = now.waiting === 0 ? "No waiters" : now.waiting > now.queue.length ? `The first ${now.queue.length} of ${count(now.waiting)} waiters` : "Waiters";
      const known = data.history.events.length > 0;
      drawing.hidden = !known;
      events.title.textContent = known ? "Last events, newest first" : "No events recorded";
      const signature = JSON.stringify(data.history.events.map((event) => [event.at_ms, event.what, event.token]));
      // The bar of a held lock grows; other drawings need no update.
      if (signature !== drawn || now.holders.length > 0) {
        line.replaceChildren(timeline(data.history.events, asOf, cellNow(), drawingWidth(line)));
        drawn = signature;
      }
      list(events.body, data.history.events, (event) => event.at_ms + event.what + event.token + event.session, (event) => tr({ "data-what": event.what },
        td("Event", eventText[event.what] ?? event.what, event.reason ? h("div", { class: "soft" }, "“", event.reason, "”") : ""),
        rowHead(owner(event)), numberCell("Token", count(event.token)),
        numberCell("Duration", event.what === "granted" ? (event.waited_ms > 0 ? "waited " + duration(event.waited_ms) : "no wait") : "held " + duration(event.held_ms)),
        numberCell("When", timestamp(event)), td("Session", event.session)));
    },
  };
}
