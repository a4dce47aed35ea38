// Times, sizes and names for people.

import { h } from "./dom.js";

let base = 0;
let received = performance.now();

/** The node has told the time of the cell. */
export function setClock(cellTimeMs) {
  base = cellTimeMs;
  received = performance.now();
}

/** The time of the cell, which goes on between two words of the node. */
export const cellNow = () => base + (performance.now() - received);

/** A duration in at most two units. */
export function duration(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return Math.round(Math.max(0, ms)) + " ms";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 60) return Math.floor(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.floor(seconds % 60) + " s";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.floor((seconds % 3600) / 60) + " min";
  return Math.floor(seconds / 86400) + " d " + Math.floor((seconds % 86400) / 3600) + " h";
}

/** A time that goes on: how long since this moment of cell time. */
export const since = (ms, after = "") => h("span", { class: "nowrap", "data-since": ms, "data-after": after }, duration(cellNow() - ms) + after);

/** The leader's wall clock at a moment, for people. */
export const utc = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC") : "");

/** A moment: how long ago, and its UTC beside it. */
export const when = (event) => h("span", { title: utc(event.utc_ms) }, since(event.at_ms, " ago"), h("div", { class: "soft nowrap utc" }, utc(event.utc_ms)));

/** A time that runs out: how long until this moment of cell time. */
export const until = (ms) => h("span", { class: "nowrap", "data-until": ms }, duration(ms - cellNow()));

/** Lets all times on the page go on. */
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

/** A size in bytes. */
export function bytes(count) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return (unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)) + " " + units[unit];
}

/** A count with thin spaces. */
export const count = (number) => Number(number).toLocaleString("en").replaceAll(",", "\u2009");

// What our own clients say last.
const VERSION = /\/lockkeeper-\d[\w.+-]*$/;

/** Who it is, or at least its session. */
export const who = (one) => one.owner || "session " + one.session;

/** The same to look at: the client's version steps back. */
export function owner(one) {
  const name = who(one);
  const [version] = name.match(VERSION) ?? [""];
  return h("span", { class: "who" }, parted(name.slice(0, name.length - version.length)), version ? h("small", { class: "soft" }, h("wbr"), version) : "");
}

/** Names break behind a slash, if they must. */
const parted = (name) => name.split(/(?<=\/)/).flatMap((part, at) => (at === 0 ? [part] : [h("wbr"), part]));

/** A name where there is little room: without the client's version, and cut. */
export function brief(name, letters) {
  const short = name.replace(VERSION, "");
  return short.length > letters ? short.slice(0, letters - 1) + "…" : short;
}

/** The address of a lock's own view. */
export const lockAddress = (name) => "#/lock?name=" + encodeURIComponent(name);

/** A lock's name that leads to its own view. */
export const lockLink = (name) => h("a", { href: lockAddress(name), "data-focus": "lock " + name }, parted(name));

/** A link to another node's console, if its address is one. */
export function nodeLink(address, text, hash = "") {
  try {
    const url = new URL(location.protocol + "//" + address + "/" + hash);
    if (url.host) return h("a", { href: url.href }, text);
  } catch {
    // No address that a browser understands.
  }
  return document.createTextNode(text);
}

/** What happened, in words. */
export const happened = {
  granted: "granted",
  released: "released",
  session_closed: "released: its session was closed",
  session_expired: "lost: its session expired",
  forced: "taken away by force",
  cancelled: "given back: its caller had gone",
  wounded: "lost to an older scope",
};
