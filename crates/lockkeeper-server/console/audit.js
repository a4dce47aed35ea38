// What operators did.

import { figure, h, list, table, td, tr } from "./dom.js";
import { count, lockLink, when } from "./format.js";

function told(act) {
  if (act.what === "force_release") {
    const from = act.released === 0 ? "nobody held it" : act.released === 1 ? "taken from one holder" : `taken from ${count(act.released)} holders`;
    return ["freed ", lockLink(act.lock), ` by force: ${from}, last token ${count(act.last_token)}`];
  }
  if (act.what === "members") return `the members are now ${act.members}`;
  if (act.what === "restored") return `the cell was made from a backup; its tokens go on above ${count(act.last_token)}`;
  return act.change ?? act.what;
}

export function audit() {
  const rows = table("", ["#Number", "Who", "What", "Why", "#When"]);
  const root = h("section", {}, h("h2", {}, "What operators did"), rows.whole);
  return {
    root,
    title: () => "Audit",
    wants: () => ({ view: "audit" }),
    update(data) {
      rows.title.textContent = data.acts.length === 0 ? "Nothing yet" : "The newest first";
      list(rows.body, data.acts, (act) => act.number, (act) => tr({ "data-what": act.what },
        figure("Number", act.number), td("Who", act.by || h("span", { class: "soft" }, "–")), td("What", told(act)), td("Why", act.reason || h("span", { class: "soft" }, "–")),
        figure("When", when(act))));
    },
  };
}
