// Elections of the cell's users.

import { h } from "./dom.js";

export function elections() {
  const words = h("p", { class: "soft" }, "This version has no elections yet.");
  const root = h("section", {}, h("h2", {}, "Elections"), words);
  return {
    root,
    title: () => "Elections",
    wants: () => ({ view: "top" }),
    update() {},
  };
}
