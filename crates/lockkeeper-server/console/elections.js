// The users' elections and their leaders.

import { h, list, numberCell, rowHead, table, td, tr } from "./dom.js";
import { count, lockAddress, since } from "./format.js";

const address = (after) => "#/elections?" + new URLSearchParams(after ? { after } : {});

const named = (one) => (one.value && one.value !== one.owner ? `${one.value} (${one.owner})` : one.value || one.owner);

export function elections() {
  const rows = table("", ["Election", "Leader", "#Epoch", "#Leading for", "Candidates"]);
  const first = h("button", { type: "button", onclick: () => { location.hash = address(""); } }, "First page");
  const next = h("button", { type: "button" }, "Next page");
  const root = h("section", {}, h("h2", {}, "Elections"), rows.whole, h("div", { class: "row" }, first, next));
  return {
    root,
    title: () => "Elections",
    reusable: true,
    setParameters: (parameters) => { first.disabled = !parameters.after; },
    query: (parameters) => ({ view: "elections", after: parameters.after ?? "" }),
    update(data, node) {
      const shown = data.elections.length;
      const text = shown === 0 ? "No elections" : `${count(shown)} ${data.more ? "(and more) " : ""}shown`;
      if (rows.title.textContent !== text) rows.title.textContent = text;
      next.disabled = !data.more;
      next.onclick = () => { location.hash = address(data.elections[shown - 1].election); };
      list(rows.body, data.elections, (one) => one.election, (one) => tr({ "data-election": one.election },
        rowHead(h("a", { href: lockAddress(one.lock), "data-focus": "election " + one.election }, one.election)),
        td("Leader", one.leader ? named(one.leader) : h("span", { class: "bad" }, "vacant")),
        numberCell("Epoch", one.leader ? count(one.leader.epoch) : "–"),
        numberCell("Leading for", one.leader ? since(node.as_of_ms - one.leader.held_ms) : "–"),
        td("Candidates", one.candidates === 0 ? h("span", { class: "soft" }, "none")
          : h("ul", {}, one.next.map((candidate) => h("li", {}, named(candidate), " for ", since(node.as_of_ms - candidate.waited_ms))),
            one.candidates > one.next.length ? h("li", { class: "soft" }, `and ${count(one.candidates - one.next.length)} more`) : ""))));
    },
  };
}
