// The sessions and their remaining time.

import { h, list, numberCell, rowHead, table, td, tr } from "./dom.js";
import { cellNow, count, duration, owner, since, until } from "./format.js";

const address = (owner, after) => "#/sessions?" + new URLSearchParams({ ...(owner && { owner }), ...(after && { after }) });

function left(session) {
  if (session.remaining_ms === null) return h("span", { class: "soft" }, "known to the leader only");
  const meter = h("meter", { min: 0, max: session.ttl_ms, low: session.ttl_ms / 4, value: session.remaining_ms, "aria-label": "Time left" });
  return [meter, " ", until(cellNow() + session.remaining_ms)];
}

export function sessions() {
  let ownerFilter = "";
  let timer;
  const input = h("input", { id: "owner", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "all owners" });
  const rows = table("", ["Owner", "#Time left", "#TTL", "#Locks held", "#Waits", "#Age", "Session"]);
  const first = h("button", { type: "button", onclick: () => { location.hash = address(ownerFilter, ""); } }, "First page");
  const next = h("button", { type: "button" }, "Next page");
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { location.hash = address(input.value, ""); }, 150);
  });
  const root = h("section", {}, h("h2", {}, "Sessions"),
    h("div", { class: "row" }, h("label", { for: "owner" }, "Owner contains"), input), rows.whole,
    h("div", { class: "row" }, first, next));
  return {
    root,
    title: () => "Sessions",
    reusable: true,
    setParameters(parameters) {
      ownerFilter = parameters.owner ?? "";
      if (document.activeElement !== input) input.value = ownerFilter;
      first.disabled = !parameters.after;
    },
    query: (parameters) => ({ view: "sessions", owner: parameters.owner ?? "", after: parameters.after ?? "" }),
    update(data, node) {
      const shown = data.sessions.length;
      const text = shown === 0 ? "No sessions" : `${count(shown)} ${data.more ? "(and more) " : ""}shown, ${count(data.total)} in the cell`;
      if (rows.title.textContent !== text) rows.title.textContent = text;
      next.disabled = !data.more;
      next.onclick = () => { location.hash = address(ownerFilter, data.next); };
      // The time left jumps at every renewal, so rows are always rendered again.
      list(rows.body, data.sessions, (session) => session.session, (session) => tr({ "data-session": session.session },
        rowHead(owner(session)), numberCell("Time left", left(session)), numberCell("TTL", duration(session.ttl_ms)),
        numberCell("Locks held", count(session.grants)), numberCell("Waits", count(session.waits)),
        numberCell("Age", since(node.as_of_ms - session.age_ms)), td("Session", session.session)), JSON.stringify);
    },
  };
}
