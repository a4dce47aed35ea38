// The access token of whoever looks, kept as long as the tab is open.

const KEY = "lockkeeper-access-token";
const dialog = document.getElementById("token");
const form = document.getElementById("token-form");
const why = document.getElementById("token-why");
const field = document.getElementById("token-text");
let dismissed = false;

/** The header that shows it, if there is one. */
export function tokenHeader() {
  const token = sessionStorage.getItem(KEY);
  return token ? { authorization: "Bearer " + token } : {};
}

/** It is not known to the cell. */
export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

/** Asks for a token, unless that was just declined. */
export function askForToken(reason) {
  why.textContent = reason;
  if (dialog.open || dismissed) return;
  field.value = "";
  dialog.showModal();
  field.focus();
}

document.getElementById("token-cancel").addEventListener("click", () => {
  dismissed = true;
  dialog.close();
});

document.getElementById("token-change").addEventListener("click", () => {
  dismissed = false;
  askForToken("The token is kept in this tab alone, until it is closed.");
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, field.value.trim());
  dismissed = false;
  dialog.close();
});
