package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
)

// programs are the files of the image, in /usr/bin.
var programs = []string{"evictctl", "evictd", "evictd-controller", "evictd-kube"}

// machines has the machine of each architecture in an ELF header.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// readProgram reads an executable. It returns an error if it is not a static one for linux/arch.
func readProgram(path, arch string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: make image builds it, go build -o %s/ ./cmd/... with GOARCH=%s too", err, filepath.Dir(path), arch)
	}
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("%s is not an ELF executable: %w", path, err)
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB || f.Machine != machines[arch] {
		return nil, fmt.Errorf("%s is for %v, and not for linux/%s (%v)", path, f.Machine, arch, machines[arch])
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return nil, fmt.Errorf("%s is %v and not an executable", path, f.Type)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s needs shared libraries, which the image does not have: build it with CGO_ENABLED=0", path)
		}
	}
	return content, nil
}
