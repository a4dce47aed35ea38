// Formats times, sizes and names.

import { h } from "./dom.js";

let base = 0;
let received = performance.now();

/** Sets the cell time that the node has sent. */
export function setClock(cellTimeMs) {
  base = cellTimeMs;
  received = performance.now();
}

/** The time of the cell, extrapolated between two messages of the node. */
export const cellNow = () => base + (performance.now() - received);

/** Formats a duration in at most two units. */
export function duration(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return Math.round(Math.max(0, ms)) + " ms";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 60) return Math.floor(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.floor(seconds % 60) + " s";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.floor((seconds % 3600) / 60) + " min";
  return Math.floor(seconds / 86400) + " d " + Math.floor((seconds % 86400) / 3600) + " h";
}

/** A running duration since a moment of cell time. */
export const since = (ms, after = "") => h("span", { class: "nowrap", "data-since": ms, "data-after": after }, duration(cellNow() - ms) + after);

/** The leader's wall clock at a moment. */
export const utc = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC") : "");

/** A moment: its age, and its UTC. */
export const timestamp = (event) => h("span", { title: utc(event.utc_ms) }, since(event.at_ms, " ago"), h("div", { class: "soft nowrap utc" }, utc(event.utc_ms)));

/** A running countdown to a moment of cell time. */
export const until = (ms) => h("span", { class: "nowrap", "data-until": ms }, duration(ms - cellNow()));

/** Updates all running times of the page. */
export function tick() {
  const now = cellNow();
  for (const element of document.querySelectorAll("[data-since]")) {
    element.textContent = duration(now - Number(element.dataset.since)) + element.dataset.after;
  }
  for (const element of document.querySelectorAll("[data-until]")) {
    const left = Number(element.dataset.until) - now;
    element.textContent = duration(left);
    const meter = element.parentElement.querySelector("meter");
    if (meter) meter.value = Math.max(0, left);
  }
}

/** Formats a size in bytes. */
export function bytes(count) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return (unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)) + " " + units[unit];
}

/** Formats a number with thin spaces. */
export const count = (number) => Number(number).toLocaleString("en").replaceAll(",", "\u2009");

// The last part of an owner that our own clients send.
const VERSION = /\/lockkeeper-\d[\w.+-]*$/;

/** The name of the owner, or the session if the owner is empty. */
export const ownerName = (one) => one.owner || "session " + one.session;

/** The owner as an element, with the client's version in small print. */
export function owner(one) {
  const name = ownerName(one);
  const [version] = name.match(VERSION) ?? [""];
  return h("span", { class: "who" }, breakable(name.slice(0, name.length - version.length)), version ? h("small", { class: "soft" }, h("wbr"), version) : "");
}

/** Allows a line break after each slash of a name. */
const breakable = (name) => name.split(/(?<=\/)/).flatMap((part, at) => (at === 0 ? [part] : [h("wbr"), part]));

/** Shortens a name: removes the client's version and truncates the rest. */
export function shorten(name, letters) {
  const short = name.replace(VERSION, "");
  return short.length > letters ? short.slice(0, letters - 1) + "…" : short;
}

/** The address of the view of a lock. */
export const lockAddress = (name) => "#/lock?name=" + encodeURIComponent(name);

/** A link to the view of a lock. */
export const lockLink = (name) => h("a", { href: lockAddress(name), "data-focus": "lock " + name }, breakable(name));

/** A link to the console of another node, or plain text if the address is not valid. */
export function nodeLink(address, text, hash = "") {
  try {
    const url = new URL(location.protocol + "//" + address + "/" + hash);
    if (url.host) return h("a", { href: url.href }, text);
  } catch {
    // Not an address that a browser accepts.
  }
  return document.createTextNode(text);
}

/** The events of a lock as text. */
export const eventText = {
  granted: "granted",
  released: "released",
  session_closed: "released: session closed",
  session_expired: "lost: session expired",
  forced: "force-released",
  cancelled: "released: caller disconnected",
  wounded: "lost to an older scope",
};
