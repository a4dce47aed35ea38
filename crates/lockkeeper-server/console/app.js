// The frame of the page: chooses the view, shows the state of the node, and updates all times.

import { say } from "./dom.js";
import { nodeLink, setClock, tick } from "./format.js";
import { askForToken } from "./token.js";
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
let others = [];

/** Shows the state of the node in a sentence. */
function showState(around) {
  if (around.leader === null) {
    say(state, `Node ${around.node_id}: no leader, nothing can be granted`, "bad");
  } else if (around.leader === around.node_id) {
    if (around.leads) say(state, `Node ${around.node_id} leads the cell, term ${around.term}`);
    else say(state, `Node ${around.node_id} leads without a majority: nothing can be granted`, "bad");
  } else {
    const words = `Node ${around.node_id}, follower of node ${around.leader}: read-only, data may lag.`;
    if (!state.textContent.startsWith(words)) {
      say(state, words + " ", "warn");
      if (around.leader_address) state.append(nodeLink(around.leader_address, "Open the leader's console", location.hash));
    }
  }
}

function lost(refusal) {
  if (refusal) {
    say(state, refusal, "bad");
    askForToken(refusal);
    return;
  }
  say(state, "Node not reachable. Retrying… ", "bad");
  if (others.length > 0 && !state.querySelector("a")) {
    state.append("Other nodes: ", ...others.flatMap((other) => [nodeLink(other.address, `node ${other.node_id}`, location.hash), " "]));
  }
}

/** Reads the view and its parameters from the address. */
function wanted() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(views, path) ? path : "cell";
  return { name, asked: Object.fromEntries(new URLSearchParams(query)) };
}

function show() {
  const { name, asked } = wanted();
  stop();
  const same = shown?.name === name && shown.view.keeps?.(asked);
  if (!same) {
    const view = views[name]();
    main.replaceChildren(view.root);
    main.setAttribute("aria-busy", "true");
    if (shown) main.focus({ preventScroll: true });
    shown = { name, view };
  }
  document.title = shown.view.title(asked) + " · Lockkeeper";
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.hash === "#/" + name || (name === "lock" && link.hash === "#/locks");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const view = shown.view;
  view.ask?.(asked);
  stop = watch(view.wants(asked), ({ around, data }) => {
    setClock(around.cell_time_ms);
    if (data?.members) others = data.members.filter((member) => member.node_id !== around.node_id);
    showState(around);
    view.update(data, around);
    main.setAttribute("aria-busy", "false");
    document.documentElement.dataset.updates = Number(document.documentElement.dataset.updates ?? 0) + 1;
  }, lost);
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
