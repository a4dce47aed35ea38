// Contention: the most contended and the longest-held locks.

import { h, list, numberCell, rowHead, table, td, tr } from "./dom.js";
import { count, duration, lockLink, owner, since } from "./format.js";
import { peakText, sparkline } from "./draw.js";

/** The table of the most contended locks. */
export function contendedTable(caption) {
  const rows = table(caption, ["Lock", "#Waiting", "#Longest wait", "Held by"]);
  return {
    whole: rows.whole,
    update(locks, node) {
      rows.title.textContent = locks.length === 0 ? "No waiters" : caption;
      list(rows.body, locks, (lock) => lock.lock, (lock) => tr({},
        rowHead(lockLink(lock.lock)), numberCell("Waiting", count(lock.waiting)),
        numberCell("Longest wait", since(node.as_of_ms - lock.waited_ms)), td("Held by", lock.owner ? owner(lock) : "nobody")));
    },
  };
}

/** The table of the longest-held locks. */
export function heldTable(caption) {
  const rows = table(caption, ["Lock", "#Held for", "Held by", "#Waiting"]);
  return {
    whole: rows.whole,
    update(locks, node) {
      rows.title.textContent = locks.length === 0 ? "No locks held" : caption;
      list(rows.body, locks, (lock) => lock.lock + lock.token, (lock) => tr({},
        rowHead(lockLink(lock.lock)), numberCell("Held for", since(node.as_of_ms - lock.held_ms)),
        td("Held by", owner(lock)), numberCell("Waiting", count(lock.waiting))));
    },
  };
}

const card = (name, spread) => [
  h("div", {}, h("dt", {}, `${name}, p50`), h("dd", {}, duration(spread.p50_ms))),
  h("div", {}, h("dt", {}, `${name}, p99`), h("dd", {}, duration(spread.p99_ms))),
];

export function top() {
  const cards = h("dl", { class: "cards three" });
  const charts = h("div", { class: "two" });
  const sampled = h("p", { class: "soft" });
  const contended = contendedTable("Most contended");
  const held = heldTable("Longest held");
  const root = h("section", {}, h("h2", {}, "Contention"), cards, charts, h("div", { class: "two" }, contended.whole, held.whole), sampled);
  return {
    root,
    title: () => "Contention",
    query: () => ({ view: "top" }),
    update(data, node) {
      const { hour } = data;
      cards.replaceChildren(
        ...card("Waited", hour.waited), h("div", {}, h("dt", {}, "Grants, last hour"), h("dd", {}, count(hour.waited.count))),
        ...card("Held", hour.held), h("div", {}, h("dt", {}, "Lost, last hour"), h("dd", {}, count(hour.lost.reduce((sum, one) => sum + one, 0)))));
      charts.replaceChildren(
        h("div", {}, h("p", { class: "soft" }, "Grants" + peakText(hour.granted)), sparkline(hour.granted, "spark", "Grants in each minute of the last hour")),
        h("div", {}, h("p", { class: "soft" }, "Lost" + peakText(hour.lost)), sparkline(hour.lost, "spark-lost", "Grants lost in each minute of the last hour")));
      contended.update(data.contended, node);
      held.update(data.longest_held, node);
      sampled.textContent = data.sampled ? "A sample: there are too many locks or sessions to examine all of them." : "";
    },
  };
}
