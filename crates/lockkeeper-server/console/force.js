// The dialog for a force-release: who loses the lock, and why.

import { lockAddress, nodeLink, ownerName } from "./format.js";
import { openTokenDialog, tokenHeader } from "./token.js";

const dialog = document.getElementById("force");
const form = document.getElementById("force-form");
const what = document.getElementById("force-what");
const reason = document.getElementById("force-reason");
const error = document.getElementById("force-error");
const submit = document.getElementById("force-do");
let name = "";

/** Opens the dialog for a lock. */
export function openForceDialog(lock) {
  name = lock.lock;
  const holders = lock.holders.map((holder) => `${ownerName(holder)} (token ${holder.token})`).join(", ");
  what.textContent = holders ? `“${name}” is held by ${holders}.` : `Nobody holds “${name}”. Its old tokens are invalidated anyway.`;
  reason.value = "";
  error.replaceChildren();
  submit.disabled = false;
  dialog.showModal();
  reason.focus();
}

document.getElementById("force-cancel").addEventListener("click", () => dialog.close());

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  error.replaceChildren();
  submit.disabled = true;
  try {
    const answer = await fetch("/v1/lock/force_release", {
      method: "POST",
      headers: { "content-type": "application/json", ...tokenHeader() },
      body: JSON.stringify({ lock: name, reason: reason.value }),
      signal: AbortSignal.timeout(10000),
    });
    const body = await answer.json();
    if (answer.ok) {
      dialog.close();
      return;
    }
    error.append(body.error.message + " ");
    if (answer.status === 401 || answer.status === 403) openTokenDialog(body.error.message);
    if (body.error.leader) error.append(nodeLink(body.error.leader, "Open the leader's console", lockAddress(name)));
  } catch (failure) {
    error.append("No answer from the node (" + failure.message + "). Check the lock before you try again.");
  } finally {
    submit.disabled = false;
  }
});
