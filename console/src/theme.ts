// Light or dark: as the system says, or as the reader chose.
import { effect, signal } from "@preact/signals";

const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];
const STORED = "leasehold-theme";

const stored = localStorage.getItem(STORED);
export const theme = signal<Theme>(THEMES.find((known) => known === stored) ?? "system");

effect(() => {
  if (theme.value === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme.value;
  localStorage.setItem(STORED, theme.value);
});

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "system";
}
