// The locks in use, by prefix, a page at a time.

import { figure, h, list, rowHead, table, td, tr } from "./dom.js";
import { count, lockLink, owner, since } from "./format.js";

const address = (prefix, after) => "#/locks?" + new URLSearchParams({ ...(prefix && { prefix }), ...(after && { after }) });

function holders(lock, asOf) {
  if (lock.holders.length === 0) return h("span", { class: "soft" }, lock.closed_ms > 0 ? "closed by a lock-delay" : "nobody");
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
    keeps: () => true,
    ask(asked) {
      prefix = asked.prefix ?? "";
      if (document.activeElement !== input) input.value = prefix;
      first.disabled = !asked.after;
    },
    wants: (asked) => ({ view: "locks", prefix: asked.prefix ?? "", after: asked.after ?? "" }),
    update(data, around) {
      const shown = data.locks.length;
      const text = shown === 0 ? (prefix ? `No locks in use with the prefix “${prefix}”` : "No locks in use")
        : `${count(shown)} ${data.more ? "(and more) " : ""}shown, ${count(data.total)} in use in the cell`;
      if (rows.title.textContent !== text) rows.title.textContent = text;
      next.disabled = !data.more;
      next.onclick = () => { location.hash = address(prefix, data.locks[shown - 1].lock); };
      list(rows.body, data.locks, (lock) => lock.lock, (lock) => tr({ "data-lock": lock.lock },
        rowHead(lockLink(lock.lock)),
        td("Held by", holders(lock, around.as_of_ms)),
        td("Waiting", queue(lock, around.as_of_ms)),
        figure("Last token", count(lock.last_token))));
    },
  };
}
