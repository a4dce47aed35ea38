// The audit trail: actions of operators.

import { h, list, numberCell, table, td, tr } from "./dom.js";
import { count, lockLink, timestamp } from "./format.js";

function describe(act) {
  if (act.what === "force_release") {
    const from = act.released === 0 ? "no holders" : act.released === 1 ? "1 holder" : `${count(act.released)} holders`;
    return ["force-released ", lockLink(act.lock), `: ${from}, last token ${count(act.last_token)}`];
  }
  if (act.what === "members") return `members changed to ${act.members}`;
  if (act.what === "restored") return `cell restored from a backup; tokens continue above ${count(act.last_token)}`;
  return act.change ?? act.what;
}

export function audit() {
  const rows = table("", ["#Number", "Who", "Action", "Reason", "#When"]);
  const root = h("section", {}, h("h2", {}, "Audit trail"), rows.whole);
  return {
    root,
    title: () => "Audit",
    query: () => ({ view: "audit" }),
    update(data) {
      rows.title.textContent = data.acts.length === 0 ? "No actions recorded" : "Newest first";
      list(rows.body, data.acts, (act) => act.number, (act) => tr({ "data-what": act.what },
        numberCell("Number", act.number), td("Who", act.by || h("span", { class: "soft" }, "–")), td("Action", describe(act)), td("Reason", act.reason || h("span", { class: "soft" }, "–")),
        numberCell("When", timestamp(act))));
    },
  };
}
