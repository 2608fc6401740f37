package main

import (
	"io"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "",
		"-kernel 6.12 -suite boot,native": "",
		"-profile smoke -driver cgroupfs": "",
		"-kernel 5.4":                     `no kernel "5.4"; want one of 6.1, 6.12`,
		"-kernel 6.1,":                    `no kernel ""`,
		"-suite naive":                    `no suite "naive"; want one of boot`,
		"-profile quick":                  `no profile "quick"`,
		"-driver runc":                    `no driver "runc"`,
		"-parallel 0":                     "0 is not positive",
		"native":                          `unexpected argument "native"`,
		"-kernels 6.1":                    "not defined: -kernels",
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%q) = %v; want %q", args, err, want)
		}
	}
	if code := run([]string{"-kernel", "5.4"}, io.Discard, io.Discard); code != exitUsage {
		t.Errorf("run with a kernel that there is not = %d; want %d", code, exitUsage)
	}
	if code := run([]string{"-help"}, io.Discard, io.Discard); code != exitOK {
		t.Errorf("run -help = %d; want %d", code, exitOK)
	}
}
