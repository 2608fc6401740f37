package machine

import (
	"slices"
	"strings"
	"testing"
)

func TestArguments(t *testing.T) {
	c := Config{QEMUArgs: []string{"-L", "/firmware"}, Kernel: "/k/vmlinuz", Initrd: "/r/initrd", Root: "/a,b/root.img", Modules: "/k/modules.img", Payload: "/r/payload.img", Append: []string{"psi=0", "init=/bin/cat"}}
	args := c.arguments()
	option := func(name string) (values []string) {
		for i, a := range args {
			if a == name {
				values = append(values, args[i+1])
			}
		}
		return values
	}
	if !slices.Equal(args[:2], c.QEMUArgs) {
		t.Errorf("arguments begin with %q; want %q", args[:2], c.QEMUArgs)
	}
	// The last of two contradicting arguments counts in the kernel.
	if got := option("-append")[0]; strings.Index(got, "psi=1") > strings.Index(got, "psi=0") || !strings.HasSuffix(got, " init=/bin/cat") {
		t.Errorf("-append %q; want what Config adds at the end", got)
	}
	want := []string{
		"if=none,id=root,format=raw,file=/a,,b/root.img,snapshot=on",
		"if=none,id=modules,format=raw,file=/k/modules.img,readonly=on",
		"if=none,id=payload,format=raw,file=/r/payload.img,readonly=on",
	}
	if got := option("-drive"); !slices.Equal(got, want) {
		t.Errorf("-drive %q; want %q", got, want)
	}
	if got := option("-m"); !slices.Equal(got, []string{"4096"}) {
		t.Errorf("-m %q; want the default", got)
	}
	if got := option("-serial"); !slices.Equal(got, []string{"chardev:console"}) {
		t.Errorf("-serial %q; want the console alone", got)
	}
}
