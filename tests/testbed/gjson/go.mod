module mptraining.dev/tests/gjson

go 1.21

require (
	github.com/tidwall/gjson v1.14.1
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.0 // indirect
)
