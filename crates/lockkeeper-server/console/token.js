// The access token of the user, kept while the tab is open.

const KEY = "lockkeeper-access-token";
const dialog = document.getElementById("token");
const form = document.getElementById("token-form");
const why = document.getElementById("token-why");
const field = document.getElementById("token-text");
let dismissed = false;

/** The authorization header, if there is a token. */
export function tokenHeader() {
  const token = sessionStorage.getItem(KEY);
  return token ? { authorization: "Bearer " + token } : {};
}

/** Forgets a token that the cell has refused. */
export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

/** Asks for a token, unless the user has just declined. */
export function openTokenDialog(reason) {
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
  openTokenDialog("The token is kept in this tab until it is closed.");
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, field.value.trim());
  dismissed = false;
  dialog.close();
});
