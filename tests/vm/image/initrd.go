package image

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Initrd writes the initial file system of a kernel to file: init, a static program, and in /modules the modules that
// it loads in the order of their names. It is not compressed, because an emulated processor decompresses slowly.
func (k Kernel) Initrd(init, file string) error {
	program, err := os.ReadFile(init)
	if err != nil {
		return fmt.Errorf("make initrd: %w", err)
	}
	modules, err := filepath.Glob(filepath.Join(k.dir, "boot", "*.ko"))
	if err != nil {
		return fmt.Errorf("make initrd: %w", err)
	}
	slices.Sort(modules)
	var a archive
	for _, dir := range []string{"dev", "proc", "sys", "root", "modules"} {
		a.add(dir, cpioDir, nil)
	}
	a.add("init", cpioFile, program)
	for _, module := range modules {
		b, err := os.ReadFile(module)
		if err != nil {
			return fmt.Errorf("make initrd: %w", err)
		}
		a.add("modules/"+filepath.Base(module), cpioFile, b)
	}
	if err := os.WriteFile(file, a.close(), 0o644); err != nil {
		return fmt.Errorf("make initrd: %w", err)
	}
	return nil
}
