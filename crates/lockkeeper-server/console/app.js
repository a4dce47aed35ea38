// The frame of the page: chooses the view, shows the state of the node, and updates all times.
//
// A view has an element `root`, a `title` and the `query` of its events for given parameters, and `update`, which renders an
// event. A `reusable` view is kept when its parameters change; `setParameters` shows them.

import { setText } from "./dom.js";
import { nodeLink, setClock, tick } from "./format.js";
import { openTokenDialog } from "./token.js";
import { watch } from "./stream.js";
import { cell } from "./cell.js";
import { locks } from "./locks.js";
import { lock } from "./lock.js";
import { graph } from "./graph.js";
import { sessions } from "./sessions.js";
import { top } from "./top.js";
import { elections } from "./elections.js";
import { audit } from "./audit.js";

const views = { cell, locks, lock, graph, sessions, top, elections, audit };
const main = document.getElementById("view");
const state = document.getElementById("state");
let stop = () => {};
let shown;
let otherNodes = [];

/** Shows the state of the node in a sentence. */
function showState(node) {
  if (node.leader === null) {
    setText(state, `Node ${node.node_id}: no leader, nothing can be granted`, "bad");
  } else if (node.leader === node.node_id) {
    if (node.leads) setText(state, `Node ${node.node_id} leads the cell, term ${node.term}`);
    else setText(state, `Node ${node.node_id} leads without a majority: nothing can be granted`, "bad");
  } else {
    const text = `Node ${node.node_id}, follower of node ${node.leader}: read-only, data may lag.`;
    if (!state.textContent.startsWith(text)) {
      setText(state, text + " ", "warn");
      if (node.leader_address) state.append(nodeLink(node.leader_address, "Open the leader's console", location.hash));
    }
  }
}

function showDisconnected(refusal) {
  if (refusal) {
    setText(state, refusal, "bad");
    openTokenDialog(refusal);
    return;
  }
  setText(state, "Node not reachable. Retrying… ", "bad");
  if (otherNodes.length > 0 && !state.querySelector("a")) {
    state.append("Other nodes: ", ...otherNodes.flatMap((other) => [nodeLink(other.address, `node ${other.node_id}`, location.hash), " "]));
  }
}

/** Reads the name of the view and its parameters from the address. */
function parseAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(views, path) ? path : "cell";
  return { name, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

function show() {
  const { name, parameters } = parseAddress();
  stop();
  const same = shown?.name === name && shown.view.reusable;
  if (!same) {
    const view = views[name]();
    main.replaceChildren(view.root);
    main.setAttribute("aria-busy", "true");
    if (shown) main.focus({ preventScroll: true });
    shown = { name, view };
  }
  document.title = shown.view.title(parameters) + " · Lockkeeper";
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.hash === "#/" + name || (name === "lock" && link.hash === "#/locks");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const view = shown.view;
  view.setParameters?.(parameters);
  stop = watch(view.query(parameters), ({ around: node, data }) => {
    setClock(node.cell_time_ms);
    if (data?.members) otherNodes = data.members.filter((member) => member.node_id !== node.node_id);
    showState(node);
    view.update(data, node);
    main.setAttribute("aria-busy", "false");
    document.documentElement.dataset.updates = Number(document.documentElement.dataset.updates ?? 0) + 1;
  }, showDisconnected);
}

// The fragment names the view: this link must not change it.
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", show);
// A page in the back/forward cache must not keep its connection; it reconnects when it is shown again.
addEventListener("pagehide", () => stop());
addEventListener("pageshow", (event) => { if (event.persisted) show(); });
setInterval(tick, 500);
show();
