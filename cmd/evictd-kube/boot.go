package main

import (
	"fmt"
	"os"
	"strings"
)

// bootIDFile has the ID of this boot, in containers too.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// readBootID returns the ID of this boot from a file.
func readBootID(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%w: set --boot-id or BOOT_ID; in a unit with ProcSubset=pid, Environment=BOOT_ID=%%b", err)
	}
	id := strings.TrimSpace(string(content))
	if id == "" {
		return "", fmt.Errorf("%s is empty: set --boot-id", file)
	}
	return id, nil
}
