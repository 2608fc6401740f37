package image

import "testing"

func TestIsRecentQEMU(t *testing.T) {
	for said, want := range map[string]bool{
		"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022 Fabrice Bellard": false,
		"QEMU emulator version 8.0.5":                                           false,
		"QEMU emulator version 8.1.0":                                           true,
		"QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\n": true,
		"QEMU emulator version 11.0.0":                                          true,
		"QEMU emulator version 8":                                               false,
		"":                                                                      false,
		"QEMU emulator version 99999999999999999999.2":                          false,
	} {
		if got := isRecentQEMU(said); got != want {
			t.Errorf("isRecentQEMU(%q) = %t; want %t", said, got, want)
		}
	}
}
