# Takes the complete examples out of the documentation, so that they are compiled and run with the tests.
#
# A block that begins with ```cpp and the name of a file is that file. extract_examples(page folder sources) writes
# each block of a page into the folder, leaving alone what has not changed, and adds the .cpp and .cu files to the
# list.
function(extract_examples page folder sources)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
  file(READ ${page} rest)
  set(found ${${sources}})
  string(FIND "${rest}" "\n```cpp " begin)
  while(NOT begin EQUAL -1)
    math(EXPR begin "${begin} + 8")
    string(SUBSTRING "${rest}" ${begin} -1 rest)
    string(FIND "${rest}" "\n" name_end)
    string(SUBSTRING "${rest}" 0 ${name_end} name)
    math(EXPR code_begin "${name_end} + 1")
    string(SUBSTRING "${rest}" ${code_begin} -1 rest)
    string(FIND "${rest}" "\n```" code_end)
    math(EXPR code_length "${code_end} + 1")
    string(SUBSTRING "${rest}" 0 ${code_length} code)

    file(WRITE ${folder}/${name}.new "${code}")
    file(COPY_FILE ${folder}/${name}.new ${folder}/${name} ONLY_IF_DIFFERENT)
    file(REMOVE ${folder}/${name}.new)
    if(name MATCHES "\\.(cpp|cu)$")
      list(APPEND found ${folder}/${name})
    endif()
    string(FIND "${rest}" "\n```cpp " begin)
  endwhile()
  set(${sources} ${found} PARENT_SCOPE)
endfunction()
