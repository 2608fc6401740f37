package affinity

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestAdvice: each hold is explained, with the words of README.md.
func TestAdvice(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| hold | meaning | what to do |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	plain := strings.NewReplacer("`", "", "**", "")
	want := map[Hold]Advice{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\w.*) \| (.*) \| (.*) \|$`).FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			a := Advice{plain.Replace(row[2]), plain.Replace(row[3])}
			if a.Remedy == "–" {
				a.Remedy = ""
			}
			want[Hold(name)] = a
		}
	}
	holds := Holds()
	for _, h := range holds {
		if got := h.Advice(); got != want[h] || got.Meaning == "" {
			t.Errorf("%s.Advice() = %+v; want that of README.md, %+v", h, got, want[h])
		}
	}
	if len(advice) != len(holds) || len(want) != len(holds) {
		t.Errorf("%d holds are explained, and %d in README.md; want %d", len(advice), len(want), len(holds))
	}
}
