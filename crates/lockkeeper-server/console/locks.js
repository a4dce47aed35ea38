// The locks in use, by prefix, a page at a time.

import { h, list, numberCell, rowHead, table, td, tr } from "./dom.js";
import { count, lockLink, owner, since } from "./format.js";

const address = (prefix, after) => "#/locks?" + new URLSearchParams({ ...(prefix && { prefix }), ...(after && { after }) });

function holders(lock, asOf) {
  if (lock.holders.length === 0) return h("span", { class: "soft" }, lock.closed_ms > 0 ? "in lock-delay" : "nobody");
  const shown = lock.holders.map((holder) => h("li", {}, owner(holder), " ", h("span", { class: "chip" }, lock.capacity > 1 ? `${holder.permits} of ${lock.capacity}` : holder.mode),
    " for ", since(asOf - holder.held_ms)));
  if (lock.more_holders) shown.push(h("li", { class: "soft" }, "and more"));
  return h("ul", {}, shown);
}

function queue(lock, asOf) {
  if (lock.waiting === 0) return h("span", { class: "soft" }, "none");
  const shown = lock.queue.map((waiter) => h("li", {}, `${waiter.position}. `, owner(waiter), " for ", since(asOf - waiter.waited_ms)));
  const more = lock.waiting - lock.queue.length;
  if (more > 0) shown.push(h("li", { class: "soft" }, `and ${count(more)} more`));
  return h("ul", {}, shown);
}

export function locks() {
  let prefix = "";
  let timer;
  const input = h("input", { id: "prefix", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "all locks" });
  const rows = table("", ["Lock", "Held by", "Waiting", "#Last token"]);
  const first = h("button", { type: "button", onclick: () => { location.hash = address(prefix, ""); } }, "First page");
  const next = h("button", { type: "button" }, "Next page");
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { location.hash = address(input.value, ""); }, 150);
  });
  const root = h("section", {}, h("h2", {}, "Locks"),
    h("div", { class: "row" }, h("label", { for: "prefix" }, "Prefix"), input), rows.whole,
    h("div", { class: "row" }, first, next));
  return {
    root,
    title: () => "Locks",
    reusable: true,
    setParameters(parameters) {
      prefix = parameters.prefix ?? "";
      if (document.activeElement !== input) input.value = prefix;
      first.disabled = !parameters.after;
    },
    query: (parameters) => ({ view: "locks", prefix: parameters.prefix ?? "", after: parameters.after ?? "" }),
    update(data, node) {
      const shown = data.locks.length;
      const text = shown === 0 ? (prefix ? `No locks in use with the prefix “${prefix}”` : "No locks in use")
        : `${count(shown)} ${data.more ? "(and more) " : ""}shown, ${count(data.total)} in use in the cell`;
      if (rows.title.textContent !== text) rows.title.textContent = text;
      next.disabled = !data.more;
      next.onclick = () => { location.hash = address(prefix, data.locks[shown - 1].lock); };
      list(rows.body, data.locks, (lock) => lock.lock, (lock) => tr({ "data-lock": lock.lock },
        rowHead(lockLink(lock.lock)),
        td("Held by", holders(lock, node.as_of_ms)),
        td("Waiting", queue(lock, node.as_of_ms)),
        numberCell("Last token", count(lock.last_token))));
    },
  };
}
