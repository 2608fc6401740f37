package control

import "encoding/json"

// List is a slice that is [] in JSON if it is nil, so that a script can always
// iterate over it.
type List[T any] []T

// MarshalJSON encodes the list, a nil one as [].
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}
