// The only script of the page; the page's policy names it by its digest.
const root = document.documentElement, button = document.getElementById("theme");
const dark = () => root.dataset.theme
  ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
button.hidden = false;
button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; say(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => { d.open = true; }));
say();
